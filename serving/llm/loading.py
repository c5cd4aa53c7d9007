"""Sampling parameters a model's makers recommend, from its generation_config.json."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from jaxllm.config import ModelOptions
from jaxllm.errors import ConfigError, RequestError
from jaxllm.sampling_params import SamplingParams

_NAMES = {
    "repetition_penalty": "repetition_penalty",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "max_new_tokens": "max_tokens",
}


def default_params(options: ModelOptions, folder: Path) -> SamplingParams:
    """The parameters of requests that bring none, for a model in `folder`. Raises `ConfigError`."""
    match options.generation_config:
        case "auto":
            found = read_default_params(folder)
        case "vllm":
            found = SamplingParams()
        case name:
            if not (Path(name) / "generation_config.json").is_file():
                raise ConfigError(
                    f"generation_config={name!r}: 'auto', 'vllm', or a folder with generation_config.json"
                )
            found = read_default_params(Path(name))
    given = options.override_generation_config or {}
    try:
        return msgspec.structs.replace(found, **_ours(given))
    except (AttributeError, TypeError, RequestError) as error:
        raise ConfigError(f"override_generation_config={dict(given)!r}: {error}") from error


def _ours(given: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a generation_config.json that are ours, under our names."""
    return {ours: given[theirs] for theirs, ours in _NAMES.items() if given.get(theirs) is not None}


def read_default_params(folder: Path) -> SamplingParams:
    """The parameters of requests that bring none; `SamplingParams()` where the file is missing or silent.

    Raises `ConfigError` for a file that is not JSON or holds impossible values.
    """
    path = folder / "generation_config.json"
    if not path.is_file():
        return SamplingParams()
    try:
        given: Any = json.loads(path.read_text(encoding="utf-8"))
        return SamplingParams(**_ours(given))
    except (ValueError, AttributeError, RequestError) as error:
        raise ConfigError(f"{path}: {error}") from error
