"""Files and names in CONTRIBUTING.md and on the architecture page exist."""

import re

import pytest

from tests.conftest import ROOT

CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
MADE = {"docs/_build/html"}
"""By a script."""
PATHS = sorted(
    set(re.findall(r"`((?:jaxllm|models|pallas_kernels|serving|tests|docs|scripts)/[\w./]*)`", CONTRIBUTING)) - MADE
)


def test_the_table_of_additions_names_paths() -> None:
    assert len(PATHS) > 20


@pytest.mark.parametrize("path", PATHS)
def test_a_path_of_contributing_is_there(path: str) -> None:
    assert (ROOT / path).exists()


def test_the_architecture_page_names_every_folder_of_jaxllm() -> None:
    section = ARCHITECTURE.split("\n## jaxllm/")[1].split("\n## ")[0]
    folders = {each.parent.name for each in (ROOT / "jaxllm").glob("*/__init__.py") if not each.parent.is_symlink()}
    assert not {each for each in folders if f"`{each}/" not in section}
