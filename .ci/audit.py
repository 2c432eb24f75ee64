"""Audit of the container's lock for known weaknesses, by pip-audit and the registry's database.

Exit status: 0 no weakness is known, or the database gives no answer, which is said in capitals; 1 a
weakness, or a package of which the database knows nothing while it knows others; 2 pip-audit cannot run.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

LOCK = Path(__file__).resolve().parents[1] / "deploy" / "requirements" / "service.txt"
_SILENCE = ("ConnectionError", "ConnectTimeout", "HTTPError", "Max retries", "ServiceError", "timed out")


def judge(report: dict[str, Any] | None, said: str) -> tuple[int, list[str]]:
    """Return the exit status, and the lines to print.

    Parameters
    ----------
    report : dict or None
        pip-audit's report as JSON; None where it printed none.
    said : str
        Its standard error.
    """
    silent = "NOT AUDITED: THE DATABASE OF WEAKNESSES GIVES NO ANSWER HERE"
    if report is None:
        if any(word in said for word in _SILENCE):
            return 0, [silent]
        return 2, [f"pip-audit failed: {said.strip()}"]
    packages = report["dependencies"]
    unknown = [package for package in packages if "skip_reason" in package]
    weak = [
        f"{package['name']} {package['version']}: {each['id']}, mended in {', '.join(each['fix_versions'])}"
        for package in packages
        for each in package.get("vulns", ())
    ]
    if weak:
        return 1, weak
    if not packages:
        return 2, ["pip-audit found no package in the lock"]
    if len(unknown) == len(packages):
        return 0, [silent]
    if unknown:
        return 1, [f"{package['name']}: not audited: {package['skip_reason']}" for package in unknown]
    return 0, [f"{len(packages)} packages, no known weakness"]


def main() -> int:
    """Audit the lock, and print the outcome."""
    words = ["--requirement", str(LOCK), "--require-hashes", "--disable-pip", "--format", "json"]
    done = subprocess.run(
        [sys.executable, "-m", "pip_audit", "--progress-spinner", "off", "--timeout", "20", *words],
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        report = json.loads(done.stdout)
    except ValueError:
        report = None
    status, lines = judge(report, done.stderr)
    print("\n".join(lines), file=sys.stderr if status or lines[0].startswith("NOT AUDITED") else sys.stdout)
    return status


if __name__ == "__main__":
    sys.exit(main())
