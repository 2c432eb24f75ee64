"""`streaming-pca experiment`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from streaming_pca.cli.common import JsonOption, out, print_json, progress_bar


def experiment(
    name: Annotated[str, typer.Argument(metavar="NAME", help="As in adadpo-fig1; a wrong one lists all.")],
    quick: Annotated[
        bool, typer.Option("--quick", help="Small data, few points: shows that it works.")
    ] = False,
    seeds: Annotated[
        int | None, typer.Option(help="Trials a point; by default as many as the experiment names.")
    ] = None,
    folder: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Where NAME.csv and NAME.png go.")
    ] = Path("experiments"),
    jobs: Annotated[int, typer.Option(help="Draws worked on at once.")] = 2,
    as_json: JsonOption = False,
) -> None:
    """Regenerate a figure of a paper: NAME.csv, NAME.png, and a line that compares it with the paper's words.

    adadpo-fig1 to 3 are of paper 003, kdppca-fig1 to 4 of 004, adaptive-power-coherence,
    -n and -epsilon of 000, ldp-fig1 to 4, ldp-table1 and -table2 of 002. What stands for data
    that could not be had is said, and a table has the paper's numbers beside ours. tensor-fig1 and
    -scaling are of 001; topics finds topics of real text with private tensors. A run takes
    up what NAME.csv holds already. In full all take hours; streaming_pca/experiments/README.md
    shows what they gave.

    [dim]Examples: streaming-pca experiment adadpo-fig1 --quick
    streaming-pca experiment kdppca-fig2 --seeds 3 --out figures --json[/]
    """
    from streaming_pca.experiments.catalogue import find_experiment
    from streaming_pca.experiments.drawing import check_matplotlib, draw
    from streaming_pca.experiments.experiment import FIRST_SEED, beside_the_papers
    from streaming_pca.experiments.results import ExperimentError, ResultFile
    from streaming_pca.experiments.running import left_to_do, run

    found = find_experiment(name, quick)
    for option, value in (("--seeds", seeds), ("--jobs", jobs)):
        if value is not None and value < 1:
            raise ExperimentError(f"{option} must be at least 1, not {value}")
    check_matplotlib()
    stem = f"{name}-quick" if quick else name
    numbers = range(FIRST_SEED, FIRST_SEED + (seeds or found.seeds))
    file = ResultFile(folder / f"{stem}.csv")
    fits = sum(len(work.methods) for work in left_to_do(found, numbers, file.rows))
    with progress_bar() as progress:
        task = progress.add_task(name, total=fits)
        table = run(found, numbers, file, jobs, lambda setting, method: progress.advance(task))
    picture = folder / f"{stem}.png"
    draw(found, table, picture)
    comparison = table.compare()
    told = found.told() if found.told else []
    refused = {method: note for method, note in table.refused.items() if note}
    if as_json:
        print_json(
            {
                "experiment": name,
                "quick": quick,
                "seeds": list(numbers),
                "fits": fits,
                "verdict": comparison.verdict,
                "comparison": comparison.text,
                "claim": found.words,
                "csv": str(file.path),
                "png": str(picture),
                "refused": refused,
                "replaced": found.replaced,
                "unlike": found.unlike,
                "told": told,
                "points": _points(table),
            }
        )
        return
    head = f"{name}{' (quick: too small to judge)' if quick else ''}: {comparison.verdict}"
    lines = [f"{head}: {comparison.text}"]
    if found.replaced:
        lines.append(f"replaced: {found.replaced}")
    for line in (*lines, *beside_the_papers(table), *told):
        out.print(line, markup=False, highlight=False, soft_wrap=True)


def _points(table: Any) -> list[dict[str, Any]]:
    from streaming_pca.experiments.experiment import half_width

    return [
        {
            "panel": panel.key,
            "x": x,
            "method": method.key,
            "error": table.mean(panel.key, method.key, x),
            "half_width": half_width(table.errors(panel.key, method.key, x)),
            "seeds": len(table.errors(panel.key, method.key, x)),
            "learnt": table.learnt(panel.key, method.key, x),
            "paper": panel.printed.get((method.key, x)),
        }
        for panel in table.experiment.panels
        for x, _ in panel.points
        for method in table.experiment.methods
        if table.errors(panel.key, method.key, x)
    ]
