"""Command of the experiments: `python -m experiments NAME`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

from experiments.drawing import check_matplotlib, draw
from experiments.experiment import FIRST_SEED
from experiments.papers import EXPERIMENTS, find_experiment
from experiments.results import ExperimentError, ResultFile
from experiments.running import left_to_do, run
from streaming_pca.cli.common import fail, out, print_json, step
from streaming_pca.privacy.errors import ParameterError

_DESCRIPTION = """\
Reproduce a figure or a table of a paper.

Writes NAME.csv (one row a fit) and NAME.png, and prints a comparison with the
paper's claims. If data of the paper are not available, it names the synthetic
data that replace them; for a table it prints the paper's numbers next to ours.
A stopped run continues from NAME.csv. All experiments together take more than
an hour; with --quick, seconds each. Results: experiments/README.md.
"""
_EXAMPLES = """\
examples:
  python -m experiments --list
  python -m experiments adadpo-fig1 --quick
  python -m experiments kdppca-fig2 --seeds 3 --out figures --json
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        # One line, without usage.
        self.exit(2, f"error: {message}\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        "python -m experiments",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", metavar="NAME", nargs="?", help="an experiment: --list prints all")
    parser.add_argument("--list", action="store_true", help="print all experiments and exit")
    parser.add_argument("--quick", action="store_true", help="small data and few points: shows that it works")
    parser.add_argument(
        "--seeds", type=_positive, metavar="N", help="trials a point (default: the experiment's)"
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        default=Path("experiments"),
        help="folder of the files (%(default)s)",
    )
    parser.add_argument(
        "--jobs", type=_positive, metavar="N", default=2, help="draws computed in parallel (%(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    return parser


def _positive(text: str) -> int:
    if text.isdecimal() and int(text) > 0:
        return int(text)
    raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text!r}")


def _run(given: argparse.Namespace) -> None:
    name, quick, folder = given.name, given.quick, given.out
    found = find_experiment(name, quick)
    check_matplotlib()
    stem = f"{name}-quick" if quick else name
    seeds = range(FIRST_SEED, FIRST_SEED + (given.seeds or found.seeds))
    file = ResultFile(folder / f"{stem}.csv")
    fits = sum(len(work.methods) for work in left_to_do(found, seeds, file.rows))
    with step(name, fits) as task:
        table = run(found, seeds, file, given.jobs, lambda setting, method: task.advance())
    picture = folder / f"{stem}.png"
    draw(found, table, picture)
    comparison = table.compare()
    details = found.told() if found.told else []
    if given.json:
        print_json(
            {
                "experiment": name,
                "quick": quick,
                "seeds": list(seeds),
                "fits": fits,
                "verdict": comparison.verdict,
                "comparison": comparison.text,
                "claim": found.words,
                "csv": str(file.path),
                "png": str(picture),
                "refused": {method: note for method, note in table.refused.items() if note},
                "replaced": found.replaced,
                "unlike": found.unlike,
                "told": details,
                "points": table.points(),
            }
        )
        return
    head = f"{name}{' (quick: too small to judge)' if quick else ''}: {comparison.verdict}"
    replaced = [f"replaced: {found.replaced}"] if found.replaced else []
    _print([f"{head}: {comparison.text}", *replaced, *table.beside_the_papers(), *details])


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        out.print(line, markup=False, highlight=False, soft_wrap=True)


def main() -> NoReturn:
    """Run the command; report mistakes in one line and exit with status 2."""
    parser = _parser()
    given = parser.parse_args()
    try:
        if given.list:
            width = max(map(len, EXPERIMENTS))
            _print(f"{name:{width}}  {make(True).figure}" for name, make in EXPERIMENTS.items())
        elif given.name is None:
            parser.error("NAME is missing: --list prints all experiments")
        else:
            _run(given)
    except (ExperimentError, ParameterError) as error:
        fail(error, 2)
    sys.exit(0)


if __name__ == "__main__":
    main()
