"""The files of the page: small, from this server alone, and what they are pinned to be."""

import re
from pathlib import PurePosixPath

from jaxllm.serving.ui.files import assets
from scripts.vendor_ui import wrong_files

OURS = {path: asset.content.decode() for path, asset in assets().items() if "/vendor/" not in path}


def test_all_of_it_is_less_than_500_kilobytes() -> None:
    assert sum(len(each.content) for each in assets().values()) < 500_000


def test_the_libraries_are_the_pinned_ones() -> None:
    assert wrong_files() == []


def test_every_import_is_a_file_of_the_page() -> None:
    for path, text in OURS.items():
        for name in re.findall(r'^(?:import|export) .*?from "(.+?)";$', text, re.MULTILINE | re.DOTALL):
            parts = PurePosixPath(path).parent.joinpath(name).parts
            found: list[str] = []
            for part in parts:
                found = found[:-1] if part == ".." else [*found, part]
            assert "/" + "/".join(found[1:]) in assets(), f"{path} imports {name}"


def test_nothing_makes_markup_of_text_or_asks_elsewhere() -> None:
    for path, text in OURS.items():
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text), (
            path
        )
        addresses = set(re.findall(r"https?://[^\s\"'`]+", text)) - {"http://www.w3.org/2000/svg"}
        assert not addresses, path
