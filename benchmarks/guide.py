"""Tables of docs/guide: measured ones, which this command writes, and computed ones for docs/hooks.py.

A measured table differs from run to run, because noise has no seed. Its page holds it between the lines
``<!-- measured: NAME -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from scipy.stats import norm

from benchmarks.accuracy import libraries, toy_sets
from benchmarks.timing.command import Parser
from streaming_pca import PrivatePCA
from streaming_pca.dashboard.guarantee import guarantee_in_words
from streaming_pca.dashboard.models import Health, StreamDetail
from streaming_pca.privacy.calibration.multipliers import gaussian_multiplier

__all__ = [
    "FIGURE",
    "PAGES",
    "curve_svg",
    "curve_text",
    "epsilons_text",
    "main",
    "measured_block",
    "promise_text",
]

GUIDE = Path(__file__).parents[1] / "docs" / "guide"
PAGES = {"toys": GUIDE / "when-not-to-use.md", "libraries": GUIDE / "other-libraries.md"}
"""Page of each measured table."""
FIGURE = GUIDE.parent / "images" / "epsilon.svg"
"""Picture of the forecast angle; docs/hooks.py writes it."""

_DELTA = 1e-6
_FEATURES, _RANK, _GAP, _TAIL = 40, 3, 0.05, 2.0
_RECORDS = (5_000, 20_000, 100_000)
_CURVE = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


def promise_text() -> str:
    """Return the dashboard's words for a stream of messages at epsilon 1 and delta 1e-6."""
    stream = StreamDetail(
        name="visits-pca",
        input="visits",
        estimator="adaptive",
        dim=50,
        rank=2,
        private=True,
        local=False,
        epsilon=1.0,
        delta=_DELTA,
        privacy_unit="message",
        adjacency="replace-one",
        health=Health(level="ok"),
        guarantee=[],
    )
    return "\n".join(f"> - {line}" for line in guarantee_in_words(stream))


def epsilons_text() -> str:
    """Return a table of attackers' success by epsilon.

    The attacker guesses which of two neighbours was the input, each with probability 1/2. Under epsilon
    and delta the guess is right with probability at most (e^epsilon + delta)/(1 + e^epsilon); under mu-GDP
    at most Phi(mu/2) [DongRothSu2022].
    """
    lines = [
        "| epsilon | any outcome is at most ... times as likely | right guesses, at most | the default's |",
        "| --: | --: | --: | --: |",
    ]
    for epsilon in (0.1, 0.5, 1.0, 2.0, 4.0, 8.0):
        factor = math.exp(epsilon)
        guess = float(norm.cdf(0.5 / gaussian_multiplier(epsilon, _DELTA)))
        shown = f"{factor:,.0f}" if factor > 1000 else f"{factor:.3g}"
        most = _at_most((factor + _DELTA) / (1 + factor))
        lines.append(f"| {epsilon:g} | {shown} | {most} | {_at_most(guess)} |")
    return "\n".join(lines)


def _at_most(share: float) -> str:
    """Format a bound as a percentage, rounded up."""
    digits = 1 if share < 0.999 else 2
    return f"{math.ceil(share * 100 * 10**digits) / 10**digits:.{digits}f}%"


def curve_text() -> str:
    """Return the picture's place and a table of the forecast angle by epsilon."""
    angles = _angles()
    lines = [
        "![Forecast angle against epsilon, for three numbers of records](../images/epsilon.svg)",
        "",
        f"| epsilon | {' | '.join(f'{n:,} records' for n in _RECORDS)} |",
        f"| {' | '.join(['--:'] * (1 + len(_RECORDS)))} |",
    ]
    for i, epsilon in enumerate(_CURVE):
        cells = [f"{angles[n][i]:.1f}°" for n in _RECORDS]
        lines.append(f"| {epsilon:g} | {' | '.join(cells)} |")
    return "\n".join(lines)


def curve_svg() -> str:
    """Draw the forecast angle against epsilon, on a logarithmic axis."""
    left, top, width, height = 60, 20, 480, 240
    decades = math.log10(_CURVE[-1] / _CURVE[0])

    def place(epsilon: float, angle: float) -> tuple[float, float]:
        across = math.log10(epsilon / _CURVE[0]) / decades
        return left + width * across, top + height * (1 - angle / 90)

    def text(x: float, y: float, words: str, anchor: str = "middle") -> str:
        return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{words}</text>'

    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 620 310" role="img">',
        "<title>Forecast angle against epsilon</title>",
        '<style>text { font: 13px system-ui, "DejaVu Sans", sans-serif }</style>',
        '<rect width="620" height="310" fill="white"/>',
        text(left + width / 2, 302, "epsilon"),
        text(left, 14, "angle to the exact subspace, degrees", "start"),
    ]
    for angle in (0, 30, 60, 90):
        y = place(_CURVE[0], angle)[1]
        parts.append(f'<path d="M{left} {y:.1f}H{left + width}" stroke="#ccc"/>')
        parts.append(text(left - 8, y + 4, str(angle), "end"))
    parts += [text(place(epsilon, 0)[0], 282, f"{epsilon:g}") for epsilon in _CURVE]
    # The lines meet on the right, so their names stand on the left, above their first quarter.
    for (n, angles), colour, at in zip(
        _angles().items(), ("#b2182b", "#2166ac", "#1b7837"), (2, 1, 0), strict=True
    ):
        points = [place(*point) for point in zip(_CURVE, angles, strict=True)]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        name = text(points[at][0] + 8, points[at][1] - 6, f"{n:,} records", "start")
        parts.append(name.replace("<text", f'<text fill="{colour}"'))
    return "\n".join([*parts, "</svg>", ""])


def _angles() -> dict[int, list[float]]:
    return {n: [_degrees(n, epsilon) for epsilon in _CURVE] for n in _RECORDS}


def _degrees(records: int, epsilon: float) -> float:
    pca = PrivatePCA(n_components=_RANK, epsilon=epsilon, delta=_DELTA)
    return math.degrees(pca.plan(_FEATURES, records, tail=_TAIL).angle_at(_GAP))


def measured_block(text: str, name: str) -> re.Match[str]:
    """Find a measured table in a page.

    Raises
    ------
    ValueError
        If the page has no place for it.
    """
    pattern = rf"(?<=^<!-- measured: {name} -->\n).*?(?=^<!-- end -->$)"
    found = re.search(pattern, text, re.MULTILINE | re.DOTALL)
    if found is None:
        raise ValueError(f"no table {name!r} in the page")
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure tables, and print them or write them into their pages."""
    parser = Parser(prog="python -m benchmarks.guide", description="Measured tables of docs/guide.")
    parser.add_argument("table", nargs="+", choices=sorted(PAGES), help="tables to measure")
    parser.add_argument("--write", action="store_true", help="write them into their pages")
    parser.add_argument(
        "--rivals-python", default=sys.executable, metavar="PYTHON",
        help="a Python with diffprivlib and opendp[scikit-learn]; see benchmarks/accuracy/rivals.py",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    measure: dict[str, Callable[[], str]] = {
        "toys": lambda: toy_sets.table(list(toy_sets.rows())),
        "libraries": lambda: libraries.table(list(libraries.rows(options.rivals_python))),
    }
    for name in options.table:
        table = measure[name]()
        if not options.write:
            print(f"{table}\n")
            continue
        page = PAGES[name]
        text = page.read_text(encoding="utf-8")
        place = measured_block(text, name)
        page.write_text(f"{text[: place.start()]}\n{table}\n\n{text[place.end() :]}", encoding="utf-8")
        print(page)


if __name__ == "__main__":
    main()
