"""Sampling parameters a model's makers recommend, from its generation_config.json."""

import json
from pathlib import Path
from typing import Any

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


def read_default_params(folder: Path) -> SamplingParams:
    """The parameters of requests that bring none; `SamplingParams()` where the file is missing or silent.

    Raises `ConfigError` for a file that is not JSON or holds impossible values.
    """
    path = folder / "generation_config.json"
    if not path.is_file():
        return SamplingParams()
    try:
        given: Any = json.loads(path.read_text(encoding="utf-8"))
        return SamplingParams(
            **{ours: given[theirs] for theirs, ours in _NAMES.items() if given.get(theirs) is not None}
        )
    except (ValueError, AttributeError, RequestError) as error:
        raise ConfigError(f"{path}: {error}") from error
