"""The numbers of alerts in the documentation and in the changelog are those of the rules."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from streaming_pca.config.settings import StreamSettings, WorkerSettings
from streaming_pca.estimators.diagnostics import Diagnostics
from streaming_pca.privacy.parameters import PrivacyParameters
from tests.deploy.tools import ROOT

RULES = ROOT / "deploy" / "prometheus"
PAGES = [ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
ALERTS, MONITOR = ROOT / "docs" / "how-to" / "alerts.md", ROOT / "docs" / "how-to" / "monitor.md"

_SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400}
_COUNTS = {"a": 1, "an": 1, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "ten": 10}
_FRACTIONS = {"a tenth": 0.1, "half": 0.5, "a quarter": 0.25}
_NUMBER = rf"(?:\d+|{'|'.join(sorted(_COUNTS, key=len, reverse=True))})"
_TIME = rf"(?P<count>{_NUMBER}) (?P<unit>{'|'.join(_SECONDS)})s?"
_QUANTITY = re.compile(
    rf"\b(?:(?P<part>half|a quarter)(?: of)? (?P<whole>an?) (?P<of>{'|'.join(_SECONDS)})|{_TIME}"
    rf"|(?P<share>\d+(?:\.\d+)?)%|(?P<tenth>a tenth)"
    rf"|(?:more|fewer) than (?P<limit>{_NUMBER}) (?:batches|processes)|(?P<errors>{_NUMBER}) standard errors)"
)


def _count(text: str) -> float:
    return float(text) if text.isdigit() else float(_COUNTS[text])


def quantities(text: str) -> Iterator[float]:
    """Yield the shares, times (in seconds) and limits that a text states."""
    for found in _QUANTITY.finditer(" ".join(text.split())):
        part = found.groupdict()
        if part["part"]:
            yield _FRACTIONS[part["part"]] * _SECONDS[part["of"]]
        elif part["unit"]:
            yield _count(part["count"]) * _SECONDS[part["unit"]]
        elif part["share"]:
            yield float(part["share"]) / 100
        elif part["tenth"]:
            yield _FRACTIONS["a tenth"]
        else:
            yield _count(part["limit"] or part["errors"])


def _durations(text: str) -> Iterator[float]:
    units = {"s": 1, "m": 60, "h": 3600, "d": 86400}
    for number, unit in re.findall(r"\b(\d+)([smhd])\b", text):
        yield float(number) * units[unit]


def _limits(expression: str) -> Iterator[float]:
    """Yield the thresholds of values; 0 and 1 are states."""
    for product in re.findall(r"[<>]=? ?((?:[\d.]+ \* )?[\d.]+)(?![\d.]* \*)", expression):
        limit = math.prod(float(factor) for factor in product.split(" * "))
        if limit not in (0, 1):
            yield limit


def rules(change: Callable[[str], str] = str) -> dict[str, tuple[set[float], set[float]]]:
    """Return, for each alert, all its numbers, and those that its section must state."""
    texts = [change((RULES / name).read_text()) for name in ("recording.yml", "alerts.yml")]
    recorded, alerts = (yaml.safe_load(text)["groups"][0]["rules"] for text in texts)
    found = {}
    for rule in alerts:
        expression, waits = rule["expr"], list(_durations(rule.get("for", "")))
        inner = "".join(each["expr"] for each in recorded if each["record"] in expression)
        limits = {*_limits(expression)}
        factors = {float(number) for number in re.findall(r"\b(\d+) \* streaming", expression)}
        numbers = limits | factors | {*waits, *_durations(expression), *_durations(inner)}
        long = {wait for wait in waits if wait >= max([900, *limits])}
        found[rule["alert"]] = numbers, limits | long
    return found


def sections() -> dict[str, str]:
    parts = re.split(r"^## (\w+)$", ALERTS.read_text(), flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def contradictions(change: Callable[[str], str] = str) -> list[str]:
    """Return the disagreements between the sections of the runbook and the rules."""
    problems = []
    for alert, (numbers, required) in rules(change).items():
        stated = {*quantities(sections()[alert])}
        problems += [f"{alert}: the page has {n:g}, the rule does not" for n in sorted(stated - numbers)]
        problems += [f"{alert}: the rule has {n:g}, the page does not" for n in sorted(required - stated)]
    return problems


def test_each_section_of_the_runbook_has_the_numbers_of_its_rule() -> None:
    assert contradictions() == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("> 0.05", "> 0.06"),
        ("> 0.9", "> 0.8"),
        ("ratio < 0.1", "ratio < 0.2"),
        ("for: 1h", "for: 2h"),
        ("2 * 86400", "3 * 86400"),
        ("> 900", "> 600"),
        ("mean5m > 0.5", "mean5m > 0.2"),
        ("ready) < 2", "ready) < 3"),
        ("ratio > 2", "ratio > 4"),
        ("[6h]", "[2h]"),
    ],
)
def test_a_changed_rule_contradicts_its_section(old: str, new: str) -> None:
    assert contradictions(lambda text: text.replace(old, new))


def test_every_sentence_about_an_alert_has_its_numbers() -> None:
    known = rules()
    names = re.compile(rf"`({'|'.join(known)})`")
    any_alert = set().union(*(numbers for numbers, _ in known.values()))
    seen = 0
    for page in PAGES:
        if page == ALERTS:
            continue
        for sentence in re.split(r"(?<=[.;:])\s|, and |\n\n", page.read_text()):
            named = names.findall(sentence)
            if not named and not re.search(r"\balerts?\b", sentence, re.IGNORECASE):
                continue
            stated = {*quantities(sentence)}
            allowed = set().union(*(known[name][0] for name in named)) if named else any_alert
            assert stated <= allowed, f"{page.name}: {sentence}: {stated - allowed}"
            seen += len(stated)
    assert seen >= 3


def found(pattern: str, page: Path) -> list[float]:
    """Return the numbers in the only match of a pattern."""
    (match,) = re.findall(pattern, " ".join(page.read_text().split()))
    numbers = [match] if isinstance(match, str) else match
    return [_count(each.replace(",", "")) for each in numbers]


def test_the_thresholds_that_the_page_on_monitoring_states_are_those_of_the_rules() -> None:
    null, clipped = found(r"threshold is (\d+)%, and that of `ClippedRecords` is (\d+)%", MONITOR)
    known = rules()
    assert {null / 100} == known["NullRecords"][1]
    assert clipped / 100 in known["ClippedRecords"][1]
    (errors,) = found(r"subtract (\w+) standard errors", MONITOR)
    assert errors in known["NullRecords"][0] & known["ClippedRecords"][0]


def test_noise_alone_sets_off_an_alert_as_rarely_as_stated() -> None:
    (errors,) = found(r"subtract (\w+) standard errors", MONITOR)
    # The upper tail of a Laplace distribution of standard deviation 1 and scale 1/sqrt(2).
    batches = 2 * math.exp(math.sqrt(2) * errors)
    comment = " ".join((RULES / "alerts.yml").read_text().replace("#", " ").split())
    (stated,) = re.findall(r"in 1 of ([\d,]+) batches", comment)
    assert found(r"in 1 of ([\d,]+) batches", MONITOR) == [float(stated.replace(",", ""))]
    assert abs(float(stated.replace(",", "")) / batches - 1) < 0.03


def test_the_standard_error_at_the_default_share_is_the_stated_one() -> None:
    words = r"share of (\d+)% of epsilon (\d+) the standard error is (\d+) records"
    share, epsilon, error = found(words, MONITOR)
    made = Diagnostics(PrivacyParameters(epsilon=epsilon, delta=1e-6), share / 100)
    assert round(made.standard_error) == error
    assert StreamSettings.model_fields["diagnostics_share"].default == share / 100


def test_a_ledger_is_overdue_after_two_of_the_default_intervals() -> None:
    assert rules()["VerificationOverdue"][1] >= {2 * WorkerSettings().verify_seconds}
