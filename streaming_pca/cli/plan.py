"""Commands `streaming-pca plan` and `streaming-pca estimators`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from streaming_pca.cli.common import JsonOption, MaybeConfig, StreamOption, out, print_json, say

if TYPE_CHECKING:
    from pathlib import Path

    from streaming_pca.estimators.forecast.result import Forecast


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

    The column "private" names the adjacency: the relation of neighbouring inputs. JSON has adjacency and
    released quantities as separate fields.

    [dim]Example: streaming-pca estimators --json[/]
    """
    import dataclasses

    from streaming_pca.estimators.registry import ESTIMATORS

    infos = [e.info for _, e in sorted(ESTIMATORS.items())]
    if as_json:
        print_json([dataclasses.asdict(info) for info in infos])
        return
    table = Table(show_lines=True)
    table.add_column("id", no_wrap=True)
    for name in ("what", "source", "private", "needs"):
        table.add_column(name)
    for info in infos:
        private = ("at the producer" if info.local else info.adjacency) if info.private else "NO"
        table.add_row(info.id, info.summary, info.source, private, info.needs)
    out.print(table)
