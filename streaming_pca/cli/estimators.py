"""`streaming-pca estimators`."""

from __future__ import annotations

from rich.table import Table

from streaming_pca.cli.common import JsonOption, out, print_json


def estimators(as_json: JsonOption = False) -> None:
    """List the estimators.

    [dim]Example: streaming-pca estimators --json[/]
    """
    import dataclasses

    from streaming_pca.estimators.registry import ESTIMATORS

    cards = [e.card for _, e in sorted(ESTIMATORS.items())]
    if as_json:
        print_json([dataclasses.asdict(card) for card in cards])
        return
    table = Table()
    for name in ("id", "what", "source", "private", "adjacency", "releases", "needs"):
        table.add_column(name)
    for card in cards:
        private = ("at the producer" if card.local else "yes") if card.private else "NO"
        cells = (card.id, card.summary, card.source, private, card.adjacency, card.releases, card.needs)
        table.add_row(*cells)
    out.print(table)
