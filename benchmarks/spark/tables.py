"""Tables of the measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

__all__ = ["print_tables"]


def print_tables(found: Mapping[str, Any], console: Console | None = None) -> None:
    """Print all tables."""
    console = console or Console(width=130)
    _print(
        console,
        "rows a second, and what a row costs Spark beyond one worker's fetch, decode and kernels",
        (
            "case",
            "cores",
            "service rows/s",
            "Spark rows/s",
            "overhead",
            "CPU us/row",
            "Spark's",
            "CPU overhead",
        ),
        [
            (
                _case(row),
                str(row["cores"]),
                _number(row["rows_per_second"]["service"], ",.0f"),
                _number(row["rows_per_second"]["spark"], ",.0f"),
                _number(row["overhead"], "+.0%"),
                f"{row['cpu_microseconds_a_row']['service']:.2f}",
                f"{row['cpu_microseconds_a_row']['spark']:.2f}",
                _number(row["cpu_overhead"], "+.0%"),
            )
            for row in found["overhead"]
        ],
    )
    _print(
        console,
        "seconds of a batch that do not depend on its rows",
        ("case", "cores", "seconds", "jobs", "tasks", "driver", "seconds of small jobs"),
        [
            (
                _case(row),
                str(row["cores"]),
                f"{row['seconds']:.2f}",
                f"{row['jobs']:g}",
                f"{row['tasks']:g}",
                f"{row['driver_seconds']:.2f}",
                ", ".join(f"{name} {spent:.2f}" for name, spent in row["seconds_of_small_jobs"].items()),
            )
            for row in found["constant"]
        ],
    )
    _print(
        console,
        "bytes to the driver and between tasks",
        ("case", "cores", "bytes of rows", "tasks", "results", "driver received", "shuffled", "one sum"),
        [
            (
                _case(row),
                str(row["cores"]),
                f"{row['row_bytes']:,}",
                f"{row['tasks']:g}",
                f"{row['result_bytes']:,.0f}",
                f"{row['received_by_driver']:,.0f}",
                f"{row['shuffle_bytes']:,.0f}",
                f"{row['bytes_of_a_sum']:,}",
            )
            for row in found["traffic"]
        ],
    )
    for model in found["model"]:
        _print_model(console, model)
    _print(
        console,
        "a batch by simulated offsets",
        ("rows", "seconds", "RESERVED", "state", "checkpoint", "driver peak MiB", "Java peak MiB", "exact"),
        [
            (
                f"{row['rows']:,}",
                f"{row['seconds']:.1f}",
                f"{row['reserved_bytes']:,} B",
                f"{row['state_bytes']:,} B",
                f"{row['checkpoint_bytes']:,} B",
                f"{row['driver_peak_bytes'] / 2**20:.0f}",
                f"{row['java_peak_bytes'] / 2**20:.0f}",
                "yes" if row["sum_is_exact"] else "NO",
            )
            for row in found["simulated"]
        ],
    )


def _print_model(console: Console, model: Mapping[str, Any]) -> None:
    cores = model["cores"]
    _print(
        console,
        f"model, executors of {cores} core(s): largest error on other turns {model['largest_error']:.0%}",
        ("case", "rows", "seconds", "by the model", "error", "fitted"),
        [
            (
                _case(row),
                f"{row['rows']:,}",
                f"{row['seconds']:.2f}",
                f"{row['predicted_seconds']:.2f}",
                f"{row['error']:+.0%}",
                "yes" if row["fitted"] else "",
            )
            for row in model["checks"]
        ],
    )
    for row in model["predictions"]:
        end = row["no_gain_from"]
        gain = "more executors always help" if end is None else f"no gain beyond {end}"
        _print(
            console,
            f"{_case(row)}: a billion rows on executors of {cores} core(s): {gain}",
            ("executors", "seconds", "rows/s", "driver's share", "reads", "tasks", "bytes of sums"),
            [
                (
                    str(point["executors"]),
                    f"{point['seconds']:,.1f}",
                    f"{point['rows_per_second']:,.0f}",
                    f"{point['driver_share']:.1%}",
                    f"{point['reads']:.2f}",
                    f"{point['tasks']:,}",
                    f"{point['bytes_of_sums']:,}",
                )
                for point in row["points"]
            ],
        )


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _case(row: Mapping[str, Any]) -> str:
    name = f"{row['dim']}x{row['rank']}"
    return f"{row['estimator']} {name}" if "estimator" in row else name


def _print(console: Console, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    table = Table(title=title)
    for column in columns:
        table.add_column(column, justify="left" if column == "case" else "right")
    for row in rows:
        table.add_row(*row)
    console.print(table)
