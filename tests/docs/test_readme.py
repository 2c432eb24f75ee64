"""README stays short, and its links lead somewhere."""

from __future__ import annotations

import re

from tests.docs.pages import README, ROOT, blocks


def test_the_readme_has_at_most_150_lines() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 150


def test_every_link_of_the_readme_and_of_contributing_leads_somewhere() -> None:
    for page in (README, ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"):
        links = re.findall(r"\]\((?!http)([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
        assert links, page
        for link in links:
            assert (ROOT / link).exists(), f"{page.name}: {link}"


def test_the_blocks_of_the_readme_run_without_hidden_setup() -> None:
    """`test_code_blocks.py` runs them unchanged; readers would lack anything set up in a comment."""
    assert "<!-- setup" not in README.read_text(encoding="utf-8")
    assert [block.marker for block in blocks(README) if block.language in ("bash", "python", "toml")] == [
        None
    ] * 3
