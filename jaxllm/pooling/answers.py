"""Language models that judge: their score is how likely one of two tokens is, such as yes and no."""

import json
from pathlib import Path
from typing import Any

from jaxllm.errors import ConfigError

ANSWERS = "classifier_from_token"
"""Name of the setting, as in vLLM: two tokens, of which the second speaks for the text."""


def read_answers(folder: Path, given: Any) -> tuple[tuple[str, str], tuple[int, int]]:
    """Names and ids of two tokens, given as texts of the model's vocabulary or as ids. Raises `ConfigError`."""
    if not isinstance(given, list) or len(given) != 2 or not all(type(each) in (int, str) for each in given):
        raise ConfigError(f"{ANSWERS}={given!r}: give two tokens, as texts or as ids, such as ['no', 'yes']")
    vocabulary = _vocabulary(folder) if any(isinstance(each, str) for each in given) else {}
    ids = []
    for each in given:
        token_id = vocabulary.get(each) if isinstance(each, str) else each
        if token_id is None or token_id < 0:
            raise ConfigError(f"{ANSWERS}: {each!r} is not a token of the model's tokenizer.json; give its id")
        ids.append(token_id)
    return (str(given[0]), str(given[1])), (ids[0], ids[1])


def _vocabulary(folder: Path) -> dict[str, int]:
    path = folder / "tokenizer.json"
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))["model"]["vocab"]
    except (OSError, ValueError, KeyError, TypeError):
        raise ConfigError(f"{ANSWERS}: no vocabulary in {path}; give the ids of the tokens") from None
    pairs = found.items() if isinstance(found, dict) else ((entry[0], index) for index, entry in enumerate(found))
    return dict(pairs)
