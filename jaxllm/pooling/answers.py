"""Language models that judge: their score is how likely a token is, such as yes, mostly alongside another one."""

import json
from pathlib import Path
from typing import Any

from jaxllm.errors import ConfigError

ANSWERS = "classifier_from_token"
"""Name of the setting, as in vLLM: two tokens, where the second speaks for the text, or that one alone."""
METHOD = "method"
"""vLLM's name of what is made of their logits, which follows from how many there are."""
_METHODS = {1: "no_post_processing", 2: "from_2_way_softmax"}


def read_answers(folder: Path, given: Any, method: Any = None) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Names and ids of one token or two, given as texts of the model's vocabulary or as ids. Raises `ConfigError`."""
    if not isinstance(given, list) or len(given) not in _METHODS or not all(type(each) in (int, str) for each in given):
        raise ConfigError(f"{ANSWERS}={given!r}: give one or two tokens, as strings or IDs, such as ['no', 'yes']")
    if method not in (None, _METHODS[len(given)]):
        raise ConfigError(f"{METHOD}={method!r}: with {len(given)} tokens, only {_METHODS[len(given)]!r} is supported")
    vocabulary = _vocabulary(folder) if any(isinstance(each, str) for each in given) else {}
    ids = []
    for each in given:
        token_id = vocabulary.get(each) if isinstance(each, str) else each
        if token_id is None or token_id < 0:
            raise ConfigError(f"{ANSWERS}: {each!r} is not a token of the model's tokenizer.json; give its ID")
        ids.append(token_id)
    return tuple(str(each) for each in given), tuple(ids)


def _vocabulary(folder: Path) -> dict[str, int]:
    path = folder / "tokenizer.json"
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))["model"]["vocab"]
    except (OSError, ValueError, KeyError, TypeError):
        raise ConfigError(f"{ANSWERS}: no vocabulary in {path}; give the tokens' IDs") from None
    pairs = found.items() if isinstance(found, dict) else ((entry[0], index) for index, entry in enumerate(found))
    return dict(pairs)
