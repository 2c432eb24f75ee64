"""Bill of materials of a release, in CycloneDX: the product, and every package of the container's lock.

`cyclonedx-py` lists the packages with versions, hashes and package URLs. Added here are the product's
version, which is read off the code, and the packages' dependencies, which the lock has as comments.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "deploy" / "requirements" / "service.txt"
PRODUCT, PACKAGE = "streaming-pca", "streaming_pca"


def users_of_packages(lock: str) -> dict[str, list[str]]:
    """Return the packages that each package of a lock is there for; the product among them."""
    found: dict[str, list[str]] = {}
    name = ""
    for line in lock.splitlines():
        if pinned := re.match(r"([\w.-]+)==", line):
            name = pinned[1]
            found[name] = []
        elif used := re.match(r"    # (?:via |  )([\w.-]+)", line):
            found[name].append(used[1])
    return found


def complete(bill: dict[str, Any], version: str, lock: str) -> dict[str, Any]:
    """Add the product's version and the graph of dependencies to a bill."""
    product = bill["metadata"]["component"]
    product |= {"version": version, "purl": f"pkg:pypi/{PRODUCT}@{version}"}
    reference = {each["name"]: each["bom-ref"] for each in bill["components"]} | {PRODUCT: product["bom-ref"]}
    graph: dict[str, list[str]] = {each: [] for each in reference.values()}
    for name, users in users_of_packages(lock).items():
        for user in users:
            graph[reference[user]].append(reference[name])
    bill["dependencies"] = [{"ref": ref, "dependsOn": sorted(on)} for ref, on in sorted(graph.items())]
    return bill


def make(out: Path) -> Path:
    """Write the bill below a folder; return its path.

    Raises
    ------
    SystemExit
        If it is not as CycloneDX's schema has it.
    """
    (version,) = re.findall(r'__version__ = "(.+)"', (ROOT / PACKAGE / "__init__.py").read_text())
    options = ["--pyproject", str(ROOT / "pyproject.toml"), "--sv", "1.6"]
    options += ["--output-reproducible", "--no-validate"]
    made = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "cyclonedx_py", "requirements", str(LOCK), *options],
        capture_output=True,
        text=True,
        check=True,
    )
    text = json.dumps(complete(json.loads(made.stdout), version, LOCK.read_text()), indent=1, sort_keys=True)
    wrong = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if wrong is not None:
        sys.exit(f"the bill of materials is not valid: {wrong}")
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{PRODUCT}-{version}.cdx.json"
    path.write_text(text + "\n")
    return path


if __name__ == "__main__":
    print(make(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "dist"))
