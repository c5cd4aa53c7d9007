"""Every page of docs/decisions has one number, the same headings and a row in the index."""

import re
from pathlib import Path

import pytest

from tests.conftest import ROOT

FOLDER = ROOT / "docs" / "decisions"
PAGES = sorted(FOLDER.glob("[0-9]*.md"))
HEADINGS = ["Status", "Context", "Decision", "Consequences"]
LONGEST = 70
"""Lines that fit on one page."""


def status_of(text: str) -> str:
    return text.split("\n## Status\n\n")[1].split("\n\n", maxsplit=1)[0].replace("\n", " ")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_decision_has_its_sections_on_one_page(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text.startswith(f"# {page.stem[:3]}: ")
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == HEADINGS
    for section in text.split("\n## ")[1:]:
        assert section.partition("\n")[2].strip(), section
    assert re.match(r"(Accepted|Rejected|Superseded by \[\d{3}\]\([^)]+\))\.", status_of(text))
    assert text.count("\n") <= LONGEST


def test_numbers_are_unique() -> None:
    numbers = [page.stem[:3] for page in PAGES]
    assert len(set(numbers)) == len(numbers)


def test_the_index_lists_every_decision() -> None:
    items = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        number, title = text.partition("\n")[0].removeprefix("# ").split(": ", 1)
        items.append(f"[{number}]({page.name}): {title}. {status_of(text)}")
    index = (FOLDER / "index.md").read_text(encoding="utf-8")
    listed = index.partition("\n- ")[2].partition("\n\n")[0]
    assert [" ".join(item.split()) for item in listed.split("\n- ")] == items
