"""Commands `streaming-pca plan`, `estimators` and `audit`, and text about a release's accuracy."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streaming_pca.cli.common import (
    JsonOption,
    MaybeConfig,
    StreamOption,
    print_json,
    print_table,
    say,
    step,
)
from streaming_pca.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

    from streaming_pca.audit.bounds import Finding
    from streaming_pca.estimators.forecast.result import Forecast


_SHOWN = 6
"""Most variances shown per line."""


def plan(
    records: Annotated[int, typer.Option(help="Number of records in the whole stream.", show_default=False)],
    dim: Annotated[int | None, typer.Option(help="Number of features of a record.")] = None,
    rank: Annotated[int | None, typer.Option(help="Dimension of the subspace.")] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Epsilon of the guarantee for each record or user.")
    ] = None,
    delta: Annotated[float | None, typer.Option(help="Delta of the guarantee, below 1/records.")] = None,
    batches: Annotated[
        int | None, typer.Option(help="Number of equal batches; by default the stream chooses their sizes.")
    ] = None,
    contributions: Annotated[
        int | None, typer.Option(help='Most batches of one user, with privacy_unit = "user".')
    ] = None,
    tail: Annotated[
        float,
        typer.Option(help="Ratio of the clip radius of |x|² to the mean of |x|²: 2 to 5 for heavy tails."),
    ] = 1.0,
    gap: Annotated[
        float | None,
        typer.Option(
            help="Eigengap lambda_k - lambda_(k+1) as a share of the total variance, to predict the error."
        ),
    ] = None,
    config: MaybeConfig = None,
    stream: StreamOption = None,
    as_json: JsonOption = False,
) -> None:
    """Predict noise, charges and attainable errors before spending any budget.

    The forecast uses only the formulas of the default estimator and public numbers, without a broker. With
    --config, dim, rank, epsilon, delta, contributions and batches are read from the file.

    [dim]Examples:

    streaming-pca plan --dim 50 --rank 2 --records 100000 --epsilon 1 --delta 1e-6 --gap 0.1

    streaming-pca plan --config stream.toml --records 1000000 --json[/]
    """
    from streaming_pca.estimators.forecast.batches import planned_batches
    from streaming_pca.estimators.forecast.forecast import forecast
    from streaming_pca.estimators.forecast.result import as_json as facts_of
    from streaming_pca.estimators.forecast.result import describe

    given = {"dim": dim, "rank": rank, "epsilon": epsilon, "delta": delta}
    if config is not None:
        named = [
            name for name, value in {**given, "contributions": contributions}.items() if value is not None
        ]
        if named:
            raise UserError(f"--{named[0]} is given by --config: leave out one of them")
        found = _of_stream(config, stream, records, batches, tail)
    elif stream is not None:
        raise UserError("--stream needs --config FILE")
    elif dim is None or rank is None or epsilon is None or delta is None:
        missing = ", ".join(f"--{name}" for name, value in given.items() if value is None)
        raise UserError(f"name {missing}, or --config FILE")
    else:
        found = forecast(
            dim,
            rank,
            records,
            epsilon,
            delta,
            batches=planned_batches(records) if batches is None else batches,
            contributions=1 if contributions is None else contributions,
            tail=tail,
        )
    if as_json:
        print_json(facts_of(found, gap))
    else:
        say(describe(found, gap))


def _of_stream(config: Path, stream: str | None, records: int, batches: int | None, tail: float) -> Forecast:
    """Return the forecast for the estimator of a settings file."""
    from streaming_pca.config.loading import load_settings
    from streaming_pca.estimators.forecast.forecast import forecast_estimator

    settings = load_settings(config, stream).stream
    return forecast_estimator(settings.build_estimator(), records, batches=batches, tail=tail)


def estimators(as_json: JsonOption = False) -> None:
    """List the estimators with their purpose, source and requirements.

    "private" names the adjacency: the relation of neighbouring inputs. JSON has adjacency and
    released quantities as separate fields.

    [dim]Example: streaming-pca estimators --json[/]
    """
    import dataclasses

    from streaming_pca.estimators.registry import ESTIMATORS

    infos = [e.info for _, e in sorted(ESTIMATORS.items())]
    if as_json:
        print_json([dataclasses.asdict(info) for info in infos])
        return
    rows = []
    for info in infos:
        private = ("at the producer" if info.local else info.adjacency) if info.private else "NO"
        names = ("id", "purpose", "source", "private", "needs")
        cells = (info.id, info.summary, info.source, private, info.needs)
        rows.append(dict(zip(names, cells, strict=True)))
    print_table(rows)


def explained_text(accuracy: Mapping[str, Any]) -> str:
    """Format a release's accuracy as one line: variances, share, angle bound and support.

    For a tensor, weights are shown instead of variances. None values are omitted.
    """
    if "weights" in accuracy:
        return f"weights {_variances(accuracy['weights'], None)}"
    explained = accuracy["explained_variance"]
    variances = _variances(explained, accuracy["explained_variance_error"])
    share = _share(explained, accuracy["total_variance"], accuracy["total_variance_error"])
    support = f"{len(accuracy['support'])} features" if "support" in accuracy else None
    return "; ".join(filter(None, (variances, share, _angle(accuracy["angle_bound"]), support)))


def counts_text(counts: Mapping[str, Any]) -> str:
    """Format the noisy shares of null and clipped records, with their standard errors.

    A share is limited to 0% to 100%, although noise may take it outside. If pairs are clipped, the second
    share is of pairs.
    """
    if not counts["batch_records"]:
        return "no rows: no message could be read"
    parts = []
    for name, records in (("null", counts["batch_records"]), ("clipped", max(counts["clipped_of"], 1))):
        share, error = (counts[key] / records for key in (f"{name}_records", f"{name}_records_error"))
        exact = f"{100 * error:.2g}%" if error < 0.1 else f"{error:.0%}"
        parts.append(f"{name} {min(max(share, 0), 1):.1%} ± {exact}")
    return ", ".join(parts)


def _variances(explained: Sequence[float], errors: Sequence[float] | None) -> str:
    shown = [_number(v, None if errors is None else errors[i]) for i, v in enumerate(explained[:_SHOWN])]
    if len(explained) > _SHOWN:
        shown.append(f"… ({len(explained)})")
    return "  ".join(shown)


def _share(explained: Sequence[float], total: float | None, error: float | None) -> str | None:
    if total is None:
        return None
    import numpy as np

    from streaming_pca.estimators.common.error_bounds import explained_ratio

    ratio = explained_ratio(np.array(explained), total)
    share = "" if ratio is None else f" ({ratio.sum():.0%})"
    return f"of {_number(total, error)}{share}"


def _angle(bound: float | None) -> str | None:
    """Format a bound on an angle in degrees, rounded up."""
    if bound is None:
        return None
    if bound >= math.pi / 2:
        return "angle unknown: too much noise"
    return f"angle ≤ {math.ceil(math.degrees(bound) * 10) / 10:.1f}° (95%, noise alone)"


def _number(value: float, error: float | None) -> str:
    return f"{value:.5g}" if error is None else f"{value:.5g} ± {error:.2g}"


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
    from streaming_pca.audit.bounds import audit as audit_case
    from streaming_pca.audit.bounds import check_trials
    from streaming_pca.audit.cases import find_cases

    if not (math.isfinite(epsilon) and epsilon >= 0.01):
        raise UserError(f"--epsilon must be a finite number of at least 0.01, not {epsilon}")
    if not 0 < delta < 1:
        raise UserError(f"--delta must lie between 0 and 1, not {delta}")
    cases = find_cases(estimator, mechanism, epsilon, delta)
    for case in cases:
        check_trials(case, trials)
    findings: list[Finding] = []
    with step("auditing", 2 * trials * len(cases)) as auditing:
        for case in cases:
            auditing.describe(f"auditing {case.id}")
            findings.append(audit_case(case, trials, auditing.advance))
    if as_json:
        print_json(_summary(findings, epsilon, delta, trials))
    else:
        _print_findings(findings)
    if any(finding.refuted for finding in findings):
        sys.exit(1)


def _summary(findings: list[Finding], epsilon: float, delta: float, trials: int) -> dict[str, Any]:
    """Return all cases, with a bound that holds for all jointly at 95% confidence."""
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
            "verdict": "REFUTED" if finding.refuted else "not refuted",
        }
        for finding in findings
    ]
    print_table(rows, right=("epsilon ≥", "mu claimed", "mu ≥"))
    say("lower bounds at 95% confidence each")
