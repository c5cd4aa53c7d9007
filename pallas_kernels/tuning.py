"""Block sizes that were tuned for a chip: one JSON file per chip and operation, `tuned/<chip>/<operation>.json`.

What the user has measured (`measured.py`) comes before it. A file is `{"entries": [{"key": {...}, "blocks": {...},
"case": ..., "microseconds": of the case, "share": ..., "command": how it was made}, ...]}`. An operation looks its key
up and falls back on a heuristic of its own where there is none. `share` is the part of the roofline that these blocks
reach in `case`, by the static model (docs/kernels.md): an estimate, for plans.
"""

import json
import math
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any, cast

from jaxllm.pallas_kernels.measured import Key, key_of, measured_blocks


@cache
def _entries(operation: str, chip: str) -> Mapping[Key, Mapping[str, Any]]:
    file = resources.files("jaxllm.pallas_kernels") / "tuned" / chip / f"{operation}.json"
    if not file.is_file():
        return {}
    return {key_of(entry["key"]): entry for entry in json.loads(file.read_text())["entries"]}


def tuned_blocks(operation: str, chip: str) -> Mapping[Key, Mapping[str, int]]:
    """All tuned block sizes of an operation on a chip (`chips.Chip.name`); empty where there are none."""
    return {key: entry["blocks"] for key, entry in _entries(operation, chip).items()}


def find_blocks(
    operation: str, chip: str | None, fields: Mapping[str, int | str], device_kind: str | None = None
) -> Mapping[str, int] | None:
    """Block sizes for the key `fields`: measured on a `device_kind`, or tuned for the chip; else None."""
    measured = device_kind and measured_blocks(operation, device_kind).get(key_of(fields))
    if measured:
        return measured
    entry = _entries(operation, chip).get(key_of(fields)) if chip else None
    return None if entry is None else cast(Mapping[str, int], entry["blocks"])


def nearest_share(operation: str, chip: str, fields: Mapping[str, int | str]) -> float | None:
    """The share of the roofline at the key nearest to `fields`, from 0 to 1; None where the chip has no such figure.

    Words of the key that differ weigh as much as a number that differs by a factor of two, but `kernel` must agree.
    """
    found = [
        (sum(_distance(value, fields[name]) for name, value in key), entry["share"])
        for key, entry in _entries(operation, chip).items()
        if "share" in entry and dict(key)["kernel"] == fields["kernel"]
    ]
    return min(found)[1] if found else None


def _distance(one: int | str, other: int | str) -> float:
    if isinstance(one, int) and isinstance(other, int):
        return abs(math.log2(one / other))
    return float(one != other)
