"""Commands `streaming-pca plan` and `streaming-pca estimators`, and the text on a release's accuracy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streaming_pca.cli.common import JsonOption, MaybeConfig, StreamOption, print_json, print_table, say

if TYPE_CHECKING:
    from pathlib import Path

    from streaming_pca.estimators.forecast.result import Forecast


_SHOWN = 6
"""Most variances shown on a line."""


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
    """Predict noise, charges and attainable errors before anything is spent.

    The forecast uses the formulas of the default estimator and public numbers only; no broker is needed.
    With --config, the file gives dim, rank, epsilon, delta, contributions and batches.

    [dim]Examples:

    streaming-pca plan --dim 50 --rank 2 --records 100000 --epsilon 1 --delta 1e-6 --gap 0.1

    streaming-pca plan --config stream.toml --records 1000000 --json[/]
    """
    from streaming_pca.config.settings import ConfigurationError
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
            raise ConfigurationError(f"--{named[0]} is given by --config: leave out one of them")
        found = _of_stream(config, stream, records, batches, tail)
    elif stream is not None:
        raise ConfigurationError("--stream needs --config FILE")
    elif dim is None or rank is None or epsilon is None or delta is None:
        missing = ", ".join(f"--{name}" for name, value in given.items() if value is None)
        raise ConfigurationError(f"name {missing}, or --config FILE")
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
    from streaming_pca.estimators.forecast.forecast import forecast_of

    settings = load_settings(config, stream).stream
    return forecast_of(settings.build_estimator(), records, batches=batches, tail=tail)


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
    """Format variances, their share, the angle bound and the support as one line.

    A tensor shows its weights in place of the variances.

    Parameters
    ----------
    accuracy : mapping
        :attr:`Release.accuracy <streaming_pca.data.release.Release.accuracy>`;
        values that are None are omitted.
    """
    if "weights" in accuracy:
        return f"weights {_variances(accuracy['weights'], None)}"
    explained = accuracy["explained_variance"]
    variances = _variances(explained, accuracy["explained_variance_error"])
    share = _share(explained, accuracy["total_variance"], accuracy["total_variance_error"])
    support = f"{len(accuracy['support'])} features" if "support" in accuracy else None
    return "; ".join(filter(None, (variances, share, _angle(accuracy["angle_bound"]), support)))


def counts_text(counts: Mapping[str, Any]) -> str:
    """Format the noisy shares of null and of clipped records, with their standard errors.

    A share is shown between 0% and 100%, though its noise may have taken it further.
    Where pairs are clipped, the second is of pairs.

    Parameters
    ----------
    counts : mapping
        :attr:`Release.counts <streaming_pca.data.release.Release.counts>`, not empty.
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
