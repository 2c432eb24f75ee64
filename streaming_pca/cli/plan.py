"""Commands `streaming-pca plan`, `estimators` and `audit`, and text about a release's accuracy."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streaming_pca.cli.common import (
    JsonOption,
    MaybeConfig,
    StreamOption,
    err,
    print_json,
    print_table,
    say,
    step,
)
from streaming_pca.errors import LibraryMissing, UserError
from streaming_pca.text import install_command

if TYPE_CHECKING:
    from types import ModuleType

    from matplotlib.figure import Figure

    from streaming_pca.audit.bounds import Finding
    from streaming_pca.estimators.common.clipped_batches import GrowingBatches
    from streaming_pca.estimators.forecast.result import Forecast


_SHOWN = 6  # most variances shown per line


def plan(
    records: Annotated[int, typer.Option(help="Number of records in the whole stream.", show_default=False)],
    dim: Annotated[int | None, typer.Option(help="Number of features of a record.")] = None,
    rank: Annotated[
        int | None, typer.Option(help="Dimension of the subspace; without --config 2, as for PrivatePCA.")
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(
            help="Epsilon of the guarantee for each record or user; without --config 1, as for PrivatePCA."
        ),
    ] = None,
    delta: Annotated[
        float | None,
        typer.Option(
            help="Delta of the guarantee, below 1/records; without --config 1e-6, as for PrivatePCA."
        ),
    ] = None,
    batches: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER",
            help='Number of equal batches, or "growing", as an endless stream takes them; by default those '
            "of PrivatePCA.fit, up to 4 million records one, or with --config those of the stream.",
        ),
    ] = None,
    contributions: Annotated[
        int | None, typer.Option(help='Most batches of one user, with privacy_unit = "user".')
    ] = None,
    rows_per_message: Annotated[
        int | None,
        typer.Option(
            min=1, help='Rows of each message, for --config with privacy_unit = "row": --records are rows.'
        ),
    ] = None,
    tail: Annotated[
        float,
        typer.Option(
            help="Clip radius of |x|² over the mean |x|²: 1 for records of one size, usually 2 to 5."
        ),
    ] = 1.0,
    gap: Annotated[
        float | None,
        typer.Option(
            help="Eigengap lambda_k - lambda_(k+1) as a share of the total variance; by default three "
            "gaps are assumed."
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Draw the angle against epsilon and against records; the ending names the format, "
            "such as .png, .svg or .pdf.",
        ),
    ] = None,
    verbose: Annotated[
        bool,
        typer.Option("--verbose", help="Show mu, rho, the noise multiplier, the shares and the noise too."),
    ] = False,
    config: MaybeConfig = None,
    stream: StreamOption = None,
    as_json: JsonOption = False,
) -> None:
    """Predict the error of a subspace before spending any budget.

    The forecast uses public numbers alone, no records and no broker: the angle that noise is expected to turn
    the subspace by, against epsilon and against the number of records. Settings that are not given are the
    defaults of PrivatePCA; with --config they are the stream's, from the file. JSON has angles in radians.

    [dim]Examples:

    streaming-pca plan --records 20000 --dim 14

    streaming-pca plan --records 20000 --dim 14 --rank 3 --epsilon 0.5 --gap 0.1 --verbose

    streaming-pca plan --records 20000 --dim 14 --plot plan.png

    streaming-pca plan --config stream.toml --records 1000000 --json[/]
    """
    from streaming_pca.estimators.forecast.result import as_json as facts_of
    from streaming_pca.estimators.forecast.result import describe

    draw = None if plot is None else _plots(plot)
    given = {"rank": rank, "epsilon": epsilon, "delta": delta}
    sizes = None if batches is None else _read_batches(batches)
    if config is not None:
        named = {"dim": dim, **given, "contributions": contributions}
        if twice := [name for name, value in named.items() if value is not None]:
            raise UserError(f"--{twice[0]} is given by --config: leave out one of them")
        found = _of_stream(config, stream, records, sizes, tail, rows_per_message)
        source = f"Settings: those of the stream in {config}{', except for its batches' * bool(sizes)}."
    elif stream is not None or rows_per_message is not None:
        raise UserError(f"--{'rows-per-message' if stream is None else 'stream'} needs --config FILE")
    elif dim is None:
        raise UserError("name --dim, or --config FILE")
    else:
        found, source = _of_library(dim, records, given, sizes, contributions, tail)
    # Checks the gap before any output.
    facts = facts_of(found, gap)
    if draw is not None and plot is not None:
        if found.rank == found.dim:
            raise UserError(
                "--plot has nothing to draw: --rank is --dim, and noise cannot turn the whole space"
            )
        draw.save_figure(_figure(found, gap), plot)
        say(f"{plot} written", err)
    if as_json:
        print_json(facts)
    else:
        say(describe(found, gap, verbose=verbose, settings=source))


def _read_batches(text: str) -> int | GrowingBatches:
    from streaming_pca.estimators.common.clipped_batches import GrowingBatches

    if text == "growing":
        return GrowingBatches()
    try:
        return int(text)
    except ValueError:
        raise UserError(f'--batches must be a whole number or "growing", not {text!r}') from None


_NAMES = {"n_components": "rank", "n_features": "dim", "n_samples": "records"}
"""Options of this command for parameters of the library."""


def _of_library(
    dim: int,
    records: int,
    given: Mapping[str, Any],
    batches: int | GrowingBatches | None,
    contributions: int | None,
    tail: float,
) -> tuple[Forecast, str]:
    """Return the forecast for the library's defaults, and a line that names them."""
    from streaming_pca.api.private_pca import PrivatePCA
    from streaming_pca.api.rows import SWAPPED
    from streaming_pca.estimators.forecast.forecast import forecast

    names = {"rank": "n_components"}
    model = PrivatePCA(**{names.get(name, name): v for name, v in given.items() if v is not None})
    try:
        with warnings.catch_warnings():
            # Options have names, so they are not swapped.
            warnings.filterwarnings("ignore", "n_samples = ")
            found = model.plan(dim, records, batches=batches, tail=tail)
        if contributions is not None:
            how = (dim, found.rank, found.records, found.epsilon, found.delta)
            sizes = found.batches if batches is None else batches
            found = forecast(*how, batches=sizes, contributions=contributions, tail=tail)
    except ValueError as error:
        text = str(error).removesuffix(SWAPPED)
        for theirs, ours in _NAMES.items():
            text = text.replace(theirs, ours)
        raise UserError(text) from None
    known = model.get_params(deep=False)
    defaults = [
        f"{name} {known[key] if isinstance(known[key], str) else format(known[key], 'g')}"
        for name, key in (("estimator", "estimator"), ("centering", "centering"), ("rank", "n_components"),
                          ("epsilon", "epsilon"), ("delta", "delta"))
        if given.get(name) is None
    ]  # fmt: skip
    count = "one batch" if len(found.batches) == 1 else f"{len(found.batches)} batches"
    return found, f"Defaults of PrivatePCA: {', '.join(defaults)}, no bounds, {count}."


def _of_stream(
    config: Path,
    stream: str | None,
    records: int,
    batches: int | GrowingBatches | None,
    tail: float,
    rows: int | None,
) -> Forecast:
    from streaming_pca.config.loading import load_settings
    from streaming_pca.estimators.forecast.forecast import forecast_estimator

    settings = load_settings(config, stream).stream
    of_rows = settings.privacy_unit == "row"
    if of_rows and rows is None and not isinstance(batches, int):
        raise UserError("batches of this stream count messages: name --rows-per-message")
    if rows is not None and not of_rows:
        raise UserError(f'--rows-per-message is for privacy_unit = "row", not "{settings.privacy_unit}"')
    how: dict[str, Any] = {"batches": batches, "tail": tail, "only_full": settings.max_wait_seconds is None}
    how["rows"] = rows or 1
    return forecast_estimator(settings.build_estimator(), records, **how)


def _plots(path: Path) -> ModuleType:
    """Return the module of plots; refuse a path that no figure can be written to."""
    try:
        from streaming_pca import plots
    except LibraryMissing:
        raise UserError(f"--plot needs matplotlib: {install_command('plots')}") from None
    plots.check_figure_path(path)
    return plots


def _figure(found: Forecast, gap: float | None) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator

    epsilon = float(found.charge.epsilon)
    figure = Figure(figsize=(9, 4), layout="constrained")
    curves = (("epsilon", found.by_epsilon, epsilon), ("records", found.by_records, found.records))
    for axes, (name, points, here) in zip(figure.subplots(1, 2, sharey=True), curves, strict=True):
        values = [value for value, _ in points]
        for each in found.gaps if gap is None else (gap,):
            angles = [math.degrees(found.with_noise(noise).angle_at(each)) for _, noise in points]
            axes.plot(values, angles, marker=".", label=f"gap {100 * each:.2g}% of the total")
        axes.axvline(here, color="0.6", linestyle=":")
        axes.set(xscale="log", yscale="log", xlabel=name)
        # Every second point from the given number on is a power of two times it; long names need more room.
        given = min(range(len(values)), key=lambda i: abs(math.log(values[i] / here)))
        step = 2 if max(len(_short(value)) for value in values[given % 2 :: 2]) <= _LONGEST_TICK else 4
        ticks = values[given % step :: step]
        axes.set_xticks(ticks, [_short(tick) for tick in ticks])
        axes.minorticks_off()
        # So that more than one tick is in sight, even if all angles are near a right one.
        axes.set_ylim(bottom=min(axes.get_ylim()[0], 10))
        axes.yaxis.set_major_locator(FixedLocator(_DEGREES))
        axes.yaxis.set_major_formatter(lambda degrees, _: f"{degrees:g}°")
        axes.grid(visible=True, alpha=0.3)
        if name == "epsilon":
            axes.set_ylabel("expected largest angle, noise alone")
            axes.legend()
    figure.suptitle(
        f"{found.rank} components of {found.dim:,} features: {found.records:,} records, epsilon {epsilon:g}"
    )
    return figure


_DEGREES = [*(digit * 10.0**power for power in range(-9, 2) for digit in (1, 3)), 90.0]  # ticks of angles
_LONGEST_TICK = 6  # most characters of seven names side by side


def _short(number: float) -> str:
    """Format a number above 0 with three digits: 0.0375, 1.5, 337k, 2.69M."""
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= 0.9995 * size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.3g}"


def estimators(as_json: JsonOption = False) -> None:
    """List the estimators with their purpose, source and requirements.

    "private" names the adjacency: the relation of neighbouring inputs. JSON has adjacency and
    released quantities as separate fields.

    [dim]Example: streaming-pca estimators --json[/]
    """
    from dataclasses import asdict

    from streaming_pca.estimators.registry import ESTIMATORS

    found = [e for _, e in sorted(ESTIMATORS.items())]
    if as_json:
        print_json([{"name": e.__name__, "adjacency": e.info.adjacency} | asdict(e.info) for e in found])
        return
    rows = []
    for info in (e.info for e in found):
        private = ("at the producer" if info.local else info.adjacency) if info.private else "NO"
        what = {"id": info.id, "purpose": info.summary, "source": info.source}
        rows.append(what | {"private": private, "needs": info.needs})
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

    Shares are limited to 0% to 100%, beyond which noise may take them. The second may be of pairs.
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

    ratio = explained_ratio(np.maximum(explained, 0.0), total)
    share = "" if ratio is None else f" ({ratio.sum():.0%})"
    return f"of {_number(total, error)}{share}"


def _angle(bound: float | None) -> str | None:
    """Format a bound on an angle in degrees, rounded up."""
    if bound is None:
        return None
    if bound >= math.pi / 2:
        return "angle error unknown: too much noise"
    return f"angle ≤ {math.ceil(math.degrees(bound) * 10) / 10:.1f}° (95%)"


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
    at most once in 10,000 audits of one case. All cases together take some minutes.

    [dim]Examples:

    streaming-pca audit --estimator analyze-gauss --trials 3000

    streaming-pca audit --mechanism gaussian_on_vector --epsilon 4 --json[/]
    """
    from streaming_pca.audit.bounds import audit as audit_case
    from streaming_pca.audit.bounds import check_trials
    from streaming_pca.audit.cases import find_cases

    if not (math.isfinite(epsilon) and epsilon >= 0.01):
        raise UserError(f"--epsilon must be a finite number of at least 0.01, not {epsilon}")
    if not 0 < delta < 1:
        raise UserError(f"--delta must lie between 0 and 1, not {delta}")
    with step("calibrating the noise of the cases"):
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
        "epsilon_lower_bound": max(float(f.for_epsilon.epsilon(delta, each)) for f in findings),
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
