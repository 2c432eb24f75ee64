"""Command `streaming-pca audit`."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streaming_pca.cli.common import JsonOption, print_json, print_table, progress_bar, say

if TYPE_CHECKING:
    from streaming_pca.audit.bounds import Finding


def audit(
    estimator: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Estimator to audit: an id of `streaming-pca estimators`."),
    ] = None,
    mechanism: Annotated[
        str | None, typer.Option(metavar="ID", help="Mechanism to audit, such as gaussian_on_vector.")
    ] = None,
    trials: Annotated[
        int, typer.Option(help="Runs on each of two neighbouring inputs; half of them choose the test.")
    ] = 10_000,
    epsilon: Annotated[float, typer.Option(help="Epsilon of the audited guarantee, at least 0.01.")] = 1.0,
    delta: Annotated[float, typer.Option(help="Delta of the audited guarantee, between 0 and 1.")] = 1e-6,
    as_json: JsonOption = False,
) -> None:
    """Audit mechanisms and estimators by attacks on worst-case neighbouring inputs.

    Each line is a lower bound on the privacy loss at 95% confidence. A low bound proves nothing; a bound
    above the claim refutes it. The exit status is 1 if a claim is refuted, which happens to a true claim
    at most once in 10,000 audits. All cases together take some minutes.

    [dim]Examples: streaming-pca audit --estimator analyze-gauss --trials 3000
    streaming-pca audit --mechanism gaussian_on_vector --epsilon 4 --json[/]
    """
    from streaming_pca.audit.bounds import AuditError, check_trials
    from streaming_pca.audit.bounds import audit as audit_case
    from streaming_pca.audit.cases import find_cases

    if not (math.isfinite(epsilon) and epsilon >= 0.01):
        raise AuditError(f"--epsilon must be a finite number of at least 0.01, not {epsilon}")
    if not 0 < delta < 1:
        raise AuditError(f"--delta must lie between 0 and 1, not {delta}")
    cases = find_cases(estimator, mechanism, epsilon, delta)
    for case in cases:
        check_trials(case, trials)
    findings: list[Finding] = []
    with progress_bar() as progress:
        task = progress.add_task("", total=2 * trials * len(cases))
        for case in cases:
            progress.update(task, description=case.id)
            findings.append(audit_case(case, trials, lambda n: progress.advance(task, n)))
    if as_json:
        print_json(_summary(findings, epsilon, delta, trials))
    else:
        _print_findings(findings)
    if any(finding.refuted for finding in findings):
        sys.exit(1)


def _summary(findings: list[Finding], epsilon: float, delta: float, trials: int) -> dict[str, Any]:
    """Return all cases, with a bound over them that holds at 95% confidence jointly."""
    from streaming_pca.audit.bounds import REPORTED_AT

    each = REPORTED_AT / len(findings)
    return {
        "epsilon": epsilon,
        "delta": delta,
        "epsilon_lower_bound": max(f.epsilon_above(delta, each) for f in findings),
        "trials": trials,
        "confidence": 1 - REPORTED_AT,
        "refuted": any(f.refuted for f in findings),
        "cases": [_facts(f) for f in findings],
    }


def _facts(finding: Finding) -> dict[str, Any]:
    claim = finding.claim
    return {
        "id": finding.id,
        "epsilon": claim.epsilon,
        "delta": claim.delta,
        "epsilon_lower_bound": finding.epsilon_lower_bound,
        "mu": claim.mu if math.isfinite(claim.mu) else None,
        "mu_lower_bound": finding.mu_lower_bound,
        "trials": finding.trials,
        "refuted": finding.refuted,
    }


def _print_findings(findings: list[Finding]) -> None:
    rows = [
        {
            "case": finding.id,
            "claim": f"({finding.claim.epsilon:g}, {finding.claim.delta:g})",
            "epsilon ≥": f"{finding.epsilon_lower_bound:.3f}",
            "mu claimed": f"{finding.claim.mu:.3f}" if math.isfinite(finding.claim.mu) else "-",
            "mu ≥": f"{finding.mu_lower_bound:.3f}",
            "verdict": "REFUTED" if finding.refuted else "stands",
        }
        for finding in findings
    ]
    print_table(rows, right=("epsilon ≥", "mu claimed", "mu ≥"))
    say("lower bounds at 95% confidence each")
