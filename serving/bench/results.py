"""Result files, with the names and fields of `vllm bench`."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxllm.errors import ConfigError


def result_name(result: Mapping[str, Any]) -> str:
    """The name of the file of a load test: its label, rate, concurrency, model and time."""
    label = result["label"] or result["backend"]
    if "ramp_up_strategy" in result:
        rates = f"{result['ramp_up_start_rps']:g}qps-{result['ramp_up_end_rps']:g}qps"
        label = f"{label}-ramp-up-{result['ramp_up_strategy']}-{rates}"
    else:
        label = f"{label}-{result['request_rate']}qps"
    limit = result["max_concurrency"]
    concurrency = "" if limit is None else f"-concurrency{limit}"
    return f"{label}{concurrency}-{Path(result['model_id']).name}-{result['date']}.json"


def write_json(file: Path, result: Mapping[str, Any], *, append: bool = False) -> None:
    """Write a result, or append it as a line to others; makes the folder. Raises `ConfigError`."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a" if append else "w", encoding="utf-8") as out:
            out.write(json.dumps(result) + "\n")
    except OSError as error:
        raise ConfigError(f"cannot write the result: {error}") from None


def read_pairs(option: str, pairs: tuple[str, ...]) -> dict[str, str]:
    """`KEY=VALUE` texts as a dictionary. Raises `ConfigError` that names the option."""
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"{option}={pair!r}: expected KEY=VALUE")
        found[name.strip()] = value.strip()
    return found
