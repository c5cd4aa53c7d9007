"""Which modules a quantization means, by their names in the checkpoint."""

import re
from collections.abc import Collection, Sequence
from functools import lru_cache

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.errors import ModelError
from jaxllm.models.quantization.expressions import Expression

REGEX = "re:"
"""The prefix of an expression among the names of compressed-tensors."""


_TOWER = re.compile(r"language_model(?:\\?\.(?![*+?{])|(?=\.[*+?{]))")
"""That part in names and in expressions, where the dot may be one of a repeat: `language_model.*`."""

MAX_NAMES = 8192
"""Maximum names in a list of a configuration."""


def read_names(section: ConfigFile, *keys: str, prefix: str = "") -> tuple[str, ...]:
    """The names and expressions in these lists; the latter are what begins with `prefix`.

    Raises `ModelError`, which names the field, for lists that are too long, and for what is no expression.
    """
    found: list[str] = []
    for key in keys:
        texts = section.texts(key) if section.has(key) else []
        check_names(section, key, texts, prefix)
        found += texts
    return tuple(found)


def check_names(section: ConfigFile, key: str, texts: Collection[str], prefix: str = "") -> None:
    """Raise `ModelError` as `read_names` does."""
    if len(texts) > MAX_NAMES:
        raise ModelError(f"{section.source}: {key!r} has {len(texts)} names; at most {MAX_NAMES} are supported")
    for text in texts:
        if text.startswith(prefix):
            try:
                _expression(text.removeprefix(prefix))
            except ModelError as error:
                raise ModelError(f"{section.source}: {key!r}: {error}") from None


def without_tower(target: str) -> str:
    """A target of compressed-tensors as families call it.

    Models that also see images have their language model in a part of that name, which families leave out.
    """
    return _TOWER.sub("", target)


def is_named(name: str, patterns: Sequence[str]) -> bool:
    """Whether a list as transformers' `modules_to_not_convert` has the module.

    By the end of its name, or by an expression for what its name begins with, up to a dot.
    """
    return any(name.endswith(pattern) or _is_of(name, pattern) for pattern in patterns)


def _is_of(name: str, pattern: str) -> bool:
    ends = _expression(pattern).ends(name)
    dots = sum(3 << place for place, character in enumerate(name) if character == ".") if ends else 0
    return ends & (dots | 1 << len(name)) != 0


def matches(expression: str, name: str) -> bool:
    """Whether the name begins like that. Raises `ModelError` for what is no expression."""
    return _expression(expression).begins(name)


@lru_cache(2 * MAX_NAMES)
def _expression(text: str) -> Expression:
    return Expression(text)


IN_BLOCKS = re.compile(r"(?:^|\.)\d+\.")
"""In names of modules that are repeated."""
ROUTERS = (".gate", ".shared_expert_gate", ".router")
"""The endings of the names of modules that choose experts, which GPTQ and AWQ leave as they are without a word."""


def is_in_block(name: str) -> bool:
    """Whether a module is a matrix of the repeated layers, and no router."""
    return IN_BLOCKS.search(name) is not None and not name.endswith(ROUTERS)


def is_embedding(name: str) -> bool:
    """Whether a module is a table of vectors for tokens or positions."""
    last = name.rpartition(".")[2]
    return "embed" in last or last in ("wte", "wpe", "tok_embeddings")
