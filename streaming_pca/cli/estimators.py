"""`streaming-pca estimators`."""

from __future__ import annotations

from rich.table import Table

from streaming_pca.cli.common import JsonOption, out, print_json


def estimators(as_json: JsonOption = False) -> None:
    """List the estimators: what each does, of which paper and algorithm it is, and what it needs.

    "private" says which inputs are neighbours. JSON has more: what is released, and its adjacency apart.

    [dim]Example: streaming-pca estimators --json[/]
    """
    import dataclasses

    from streaming_pca.estimators.registry import ESTIMATORS

    cards = [e.card for _, e in sorted(ESTIMATORS.items())]
    if as_json:
        print_json([dataclasses.asdict(card) for card in cards])
        return
    table = Table(show_lines=True)
    table.add_column("id", no_wrap=True)
    for name in ("what", "source", "private", "needs"):
        table.add_column(name)
    for card in cards:
        private = ("at the producer" if card.local else card.adjacency) if card.private else "NO"
        table.add_row(card.id, card.summary, card.source, private, card.needs)
    out.print(table)
