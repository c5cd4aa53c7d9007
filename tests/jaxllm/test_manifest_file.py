"""Manifests of every kind are read alike."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jaxllm.manifest_file import ManifestFormat


class Recipe(msgspec.Struct, forbid_unknown_fields=True):
    format: str
    version: int
    flour: int


FORMAT = ManifestFormat(
    name="recipe",
    version=3,
    content=Recipe,
    max_bytes=2**20,
    describes="a recipe",
    remedy="bake again",
    error=LookupError,
)
GOOD: dict[str, Any] = {"format": "recipe", "version": 3, "flour": 5}


def test_a_manifest_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_text(json.dumps(GOOD))
    assert FORMAT.read(tmp_path / "file") == Recipe("recipe", 3, 5)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (" " * (2**20 + 1), "file: larger than 1 MiB: not a recipe"),
        (json.dumps({**GOOD, "format": "song"}), "file: not a recipe: its format is 'song'"),
        (
            json.dumps({**GOOD, "version": 4, "jaxllm": "9.1", "salt": 1}),
            "file: format version 4, by jaxllm 9.1, but this jaxllm reads version 3; bake again",
        ),
        (
            json.dumps({**GOOD, "version": 4}),
            "file: format version 4, but this jaxllm reads version 3; bake again",
        ),
        (json.dumps({**GOOD, "salt": 1}), "file: invalid: Object contains unknown field `salt`"),
        ("[" * 100_000, "file: invalid: "),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "file").write_text(content)
    with pytest.raises(LookupError) as error:
        FORMAT.read(tmp_path / "file")
    assert message in str(error.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(LookupError, match="invalid"):
        FORMAT.read(tmp_path / "file")
