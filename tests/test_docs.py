"""The pages lead where they say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import ROOT

PAGES = sorted(path for folder in (".", "docs", "docs/results", "cluster") for path in (ROOT / folder).glob("*.md"))
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]+))?\)")
ROW = re.compile(r"^\| \[[^]]+\]\(([^)]+)\) \| (.*) \|$", re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """What headings of a page are called in links, as Git's hosts call them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_what_is_there(page: Path):
    for name, anchor in LINK.findall(page.read_text(encoding="utf-8")):
        target = page.parent / name if name else page
        assert target.exists(), name
        assert not anchor or anchor in anchors(target), f"{name}#{anchor}"


def test_what_the_code_in_an_afternoon_names_of_a_file_is_in_it():
    page = ROOT / "docs" / "reading.md"
    named = [
        (page.parent / name, word)
        for name, text in ROW.findall(page.read_text(encoding="utf-8"))
        for word in re.findall(r"`(\w+)`", text)
    ]

    assert len(named) >= 8
    assert [(file.name, word) for file, word in named if word not in file.read_text(encoding="utf-8")] == []
