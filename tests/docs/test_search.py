"""The site's search, from files: no server answers, and nothing is asked of another machine."""

from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.conftest import ROOT
from tests.serving.ui.conftest import browser  # noqa: F401  (a fixture)

PAGES = {"index": "# Start\n\n```{toctree}\nother\n```\n", "other": "# Another page\n\nAll about marmots.\n"}


def test_a_word_leads_to_its_page(browser: Browser, tmp_path: Path) -> None:  # noqa: F811
    """Two pages, built with the settings of the site."""
    sphinx = pytest.importorskip("sphinx.application", reason="needs the packages of scripts/docs")
    for name, text in PAGES.items():
        (tmp_path / f"{name}.md").write_text(text)
    site = tmp_path / "site"
    settings = {"nb_execution_mode": "off", "html_static_path": []}
    read = tmp_path / "read"
    sphinx.Sphinx(str(tmp_path), str(ROOT / "docs"), str(site), str(read), "html", settings, status=None).build()
    page = browser.new_page()
    asked: list[str] = []
    page.on("request", lambda each: asked.append(each.url))
    page.goto(f"{site.as_uri()}/search.html?q=marmots")
    expect(page.locator("#search-results li a")).to_have_text(["Another page"])
    page.close()
    assert [each for each in asked if not each.startswith("file:")] == []
