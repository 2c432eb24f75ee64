"""Pages are in the navigation, cite known works, and have fresh generated text."""

from __future__ import annotations

import os
import re
from itertools import pairwise
from types import ModuleType

import pytest
import yaml

import streaming_pca
from streaming_pca import client, local
from streaming_pca.config.schema import every_setting
from streaming_pca.data.features.feature import Feature
from streaming_pca.estimators.registry import ESTIMATORS
from streaming_pca.service.metrics import Metrics
from tests.docs.pages import DOCS, README, ROOT
from tests.modules import load_module

_PAPER_NUMBER = re.compile(r"(?<![\w.,-])00[0-4](?![\w.])")
_WRITTEN = (
    README,
    *(ROOT / name for name in ("CONTRIBUTING.md", "SECURITY.md")),
    *sorted(DOCS.rglob("*.md")),
)


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    return load_module(DOCS / "hooks.py")


def test_every_page_is_in_the_navigation() -> None:
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    named = set(re.findall(r"[\w/-]+\.md", str(config["nav"])))
    there = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    assert named <= there
    # docs/hooks.py adds these.
    assert {page for page in there - named if not page.startswith("explanation/")} == set()


def test_the_glossary_has_at_most_40_terms() -> None:
    terms = re.findall(r"^\*\*(.+?)\*\*$", (DOCS / "reference/glossary.md").read_text(encoding="utf-8"), re.M)
    assert 20 <= len(terms) <= 40
    assert terms == sorted(terms, key=str.casefold)
    assert len(set(terms)) == len(terms)


def test_no_page_cites_a_paper_by_a_number() -> None:
    for page in _WRITTEN:
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
            assert _PAPER_NUMBER.search(line) is None, f"{page.name}:{number}: {line}"


def test_no_line_of_a_paragraph_is_there_twice() -> None:
    """A line that an edit left in place of its neighbour begins or ends as that one does."""
    twice = []
    for page in _WRITTEN:
        text = re.sub(r"(?ms)^ *```.*?^ *```", "", page.read_text(encoding="utf-8"))
        for line, after in pairwise(text.splitlines()):
            if line[:1].isalpha() and (line[:40] == after[:40] or line[-40:] == after[-40:]):
                twice.append(f"{page.relative_to(ROOT)}: {after}")
    assert twice == []


def test_cited_works_are_links_to_their_part_of_the_references() -> None:
    parts = re.split(r"(?m)^## (.+)$", (DOCS / "references.md").read_text(encoding="utf-8"))
    part_of = {
        key: part.lower().replace(" ", "-")
        for part, text in zip(parts[1::2], parts[2::2], strict=True)
        for key in re.findall(r"(?m)^\| \[(\w+)\] \|", text)
    }
    for page in set(DOCS.rglob("*.md")) - {DOCS / "references.md"}:
        text = page.read_text(encoding="utf-8")
        cited = set(re.findall(r"\[([A-Z][A-Za-z]+\d{4})\](?!:)", text))
        linked = dict(re.findall(r"(?m)^\[(\w+)\]: (\S+)$", text))
        way = os.path.relpath(DOCS / "references.md", page.parent)
        assert linked == {key: f"{way}#{part_of[key]}" for key in cited}, page.relative_to(DOCS)


def test_generated_text_is_fresh(hooks: ModuleType) -> None:
    used = set()
    for page in DOCS.rglob("*.md"):
        text = page.read_text(encoding="utf-8")
        used |= set(re.findall(r"^<!-- generated: (\w+) -->$", text, re.MULTILINE))
        assert hooks.refreshed(text) == text, f"{page.name} is stale: run python docs/hooks.py"
    assert used == set(hooks.GENERATORS)


def test_roles_of_docstrings_are_shown_as_names(hooks: ModuleType) -> None:
    html = "<td><p>:class:<code>~streaming_pca.BudgetAccountant</code>, :meth:<code>fit</code></p></td>"
    assert hooks.on_page_content(html) == "<td><p><code>BudgetAccountant</code>, <code>fit</code></p></td>"
    about = "Tails of :class:`~streaming_pca.estimators.oja.truncated_mean.AdaptiveMean`."
    assert hooks._prose(about) == "Tails of `AdaptiveMean`."


def test_the_public_interface_is_on_its_page() -> None:
    page = (DOCS / "reference/python.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^(?:::: [\w.]+\.| +- )(\w+)$", page, re.MULTILINE))
    for public in (streaming_pca, client, local):
        assert set(public.__all__) - {"__version__"} <= listed, public.__name__
    (example,) = re.findall(r"```python\n(.*?)^with ", page, re.DOTALL | re.MULTILINE)
    names: dict[str, object] = {}
    exec(example, names)
    assert isinstance(names["kafka"], client.KafkaSettings)


def test_a_line_of_parameters_has_one_default() -> None:
    for path in (ROOT / "streaming_pca").rglob("*.py"):
        line = re.search(r"^ +\w+(?:, \w+)+ : .*default=.* and .*$", path.read_text(encoding="utf-8"), re.M)
        assert line is None, f"{path.name}: {line}"


def test_every_estimator_has_a_row_about_its_use() -> None:
    page = (DOCS / "how-to/choose-an-estimator.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\|.*", page.partition("<!-- generated")[0], re.MULTILINE)
    assert [name for name in ESTIMATORS if not any(f"`{name}`" in row for row in rows)] == []


def test_every_file_of_the_repository_that_a_page_names_is_there() -> None:
    named = set()
    for page in _WRITTEN:
        text = page.read_text(encoding="utf-8")
        named |= set(re.findall(r"`((?:streaming_pca|tests|experiments|benchmarks|deploy)/[\w/.-]+)`", text))
    assert len(named) > 30
    assert {name for name in named if not (ROOT / name).exists()} == set()


def test_the_settings_have_a_row_each_with_a_sentence(hooks: ModuleType) -> None:
    rows = [line for line in hooks.settings_text().splitlines() if line.startswith("| `")]
    settings = every_setting()
    of_features = [row for row in rows if row.startswith("| `features.")]
    assert len(of_features) == len(Feature.model_fields)
    for row, field in zip(of_features, Feature.model_fields.values(), strict=True):
        assert row.count("|") == 5
        assert field.description, f"{row} has no docstring"
    rows = [row for row in rows if row not in of_features]
    for row, setting in zip(rows, settings, strict=True):
        assert f"`{setting.variable}`" in row
        assert row.replace("\\|", "").count("|") == 6
        assert row.endswith(". |"), f"{setting.path} has no docstring"
    assert {s.estimator for s in settings} == {None, *ESTIMATORS}


def test_the_settings_show_type_default_and_need(hooks: ModuleType) -> None:
    lines = [line for line in hooks.settings_text().splitlines() if line.startswith("| `")]
    rows = {line.split(" | ")[0].strip("| `"): line for line in lines}
    assert "| integer, ≥ 0, ≤ 65535 | `9464` |" in rows["port"]
    assert '| "stop" or "skip" | `"stop"` |' in rows["lost_records"]
    assert "| number, > 0 | **required** |" in rows["epsilon"]
    assert "| pair (each number or list (number)) | not set |" in rows["bounds"]
    assert "| ratio or number | not set |" in rows["cap.epsilon"]
    assert "if not set, the cap is not checked" in rows["cap.epsilon"]
    assert "Raises" not in hooks.settings_text()


def test_the_generated_tables_have_a_row_for_each_metric_and_command(hooks: ModuleType) -> None:
    metrics = Metrics()
    assert metrics.counts
    rows = hooks.metrics_text().splitlines()[2:]
    assert len(rows) == len(list(metrics.registry.collect()))
    assert all(row.count("|") == 5 for row in rows)
    commands = re.findall(r"^## streaming-pca (.+)$", hooks.cli_text(), re.MULTILINE)
    assert {"worker", "topics create", "ledger verify", "config check", "plan"} <= set(commands)


def test_the_page_of_the_api_has_a_row_for_each_status() -> None:
    from streaming_pca.dashboard.api.application import openapi_document

    page = (DOCS / "reference" / "http-api.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\d, ]+) \|", page, re.MULTILINE)
    shown = {status for row in rows for status in row.split(", ")}
    operations = [each for path in openapi_document()["paths"].values() for each in path.values()]
    assert shown == {status for each in operations for status in each["responses"]} - {"200"} | {"405"}


def test_every_work_that_is_cited_has_its_key() -> None:
    defined = set(re.findall(r"^\| \[(\w+)\]", (DOCS / "references.md").read_text(encoding="utf-8"), re.M))
    sources = [
        path
        for folder in ("streaming_pca", "experiments", "benchmarks")
        for path in (ROOT / folder).rglob("*.py")
    ]
    cited = {
        key: path
        for path in (*sources, *_WRITTEN)
        for key in re.findall(r"\b[A-Z][A-Za-z]+(?:19|20)\d\d\b", path.read_text(encoding="utf-8"))
    }
    assert len(cited) > 20
    assert {key: str(path) for key, path in cited.items() if key not in defined} == {}
    # Author and year in running text cite a work without its key.
    loose = re.compile(r"[A-Z][a-zé]+ (?:and [A-Z][a-zé]+|et al\.?),? \(?(?:19|20)\d\d\b")
    assert [str(path) for path in sources if loose.search(path.read_text(encoding="utf-8"))] == []


def test_generated_commands_have_no_marks_and_whole_examples() -> None:
    page = (DOCS / "reference" / "cli.md").read_text(encoding="utf-8")
    assert not re.search(r"\[/?\]|\[dim\]", page)
    examples = [
        line for block in re.findall(r"```bash\n(.*?)```", page, re.DOTALL) for line in block.splitlines()
    ]
    assert len(examples) > 20
    for line in examples:
        assert re.match(r"(streaming-pca|echo|kcat) ", line), line
        assert not line.endswith("|"), line
