"""Block sizes that were tuned for a chip: one JSON file per chip and operation, `tuned/<chip>/<operation>.json`.

A file is `{"command": how it was made, "entries": [{"key": {...}, "blocks": {...}}, ...]}`. An operation looks its key
up and falls back on a heuristic of its own where there is none.
"""

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources

Key = tuple[tuple[str, int | str], ...]


def _key(fields: Mapping[str, int | str]) -> Key:
    return tuple(sorted(fields.items()))


@cache
def tuned_blocks(operation: str, chip: str) -> Mapping[Key, Mapping[str, int]]:
    """All tuned block sizes of an operation on a chip (`chips.Chip.name`); empty where there are none."""
    file = resources.files("jaxllm.pallas_kernels") / "tuned" / chip / f"{operation}.json"
    if not file.is_file():
        return {}
    entries = json.loads(file.read_text())["entries"]
    return {_key(entry["key"]): entry["blocks"] for entry in entries}


def find_blocks(operation: str, chip: str, fields: Mapping[str, int | str]) -> Mapping[str, int] | None:
    """Tuned block sizes for the key `fields`, or None."""
    return tuned_blocks(operation, chip).get(_key(fields))
