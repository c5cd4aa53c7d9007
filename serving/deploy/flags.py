"""Options as one writes them on a command line: the inverse of `jaxllm.flags.explicit_options`."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from jaxllm.flags import Flag


def as_flags(options: Mapping[str, Any], flags: Iterable[Flag]) -> tuple[str, ...]:
    """The flags that give these options, in the order of `flags`; options that are none of them are left out."""
    found: list[str] = []
    for flag in flags:
        if flag.name not in options:
            continue
        value = options[flag.name]
        if isinstance(value, bool):
            found.append(flag.flag if value else f"--no-{flag.flag.removeprefix('--')}")
        elif isinstance(value, Mapping):
            found += [flag.flag, json.dumps(value)]
        elif isinstance(value, tuple | list):
            found += [flag.flag, *map(str, value)]
        else:
            found += [flag.flag, str(value)]
    return tuple(found)
