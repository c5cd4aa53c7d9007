"""Which modules a quantisation means, by their names in the checkpoint."""

import re
from collections.abc import Sequence

from jaxllm.models.errors import ModelError

REGEX = "re:"
"""What begins an expression among the names of compressed-tensors."""


def is_target(name: str, target: str) -> bool:
    """Whether a target of compressed-tensors is this module, by its whole name or an expression for its beginning.

    Models that also see images have their language model in a part of that name, which families leave out.
    """
    target = target.replace("language_model.", "").replace(r"language_model\.", "")
    if target.startswith(REGEX):
        return matches(target.removeprefix(REGEX), name)
    return target == name


def is_named(name: str, patterns: Sequence[str]) -> bool:
    """Whether a list as transformers' `modules_to_not_convert` has the module.

    By the end of its name, or by an expression for what its name begins with, up to a dot.
    """
    return any(name.endswith(pattern) or matches(rf"(?:{pattern})(?:(?<=\.)|(?=\.|$))", name) for pattern in patterns)


def matches(expression: str, name: str) -> bool:
    """Whether the name begins like that. Raises `ModelError` for what is no expression."""
    try:
        return re.match(expression, name) is not None
    except re.error as error:
        raise ModelError(f"config.json: {expression!r} is not a regular expression ({error})") from None


IN_BLOCKS = re.compile(r"(?:^|\.)\d+\.")
"""In names of modules that are repeated."""
ROUTERS = (".gate", ".shared_expert_gate", ".router")
"""What names of modules end with that choose experts, which GPTQ and AWQ leave as they are without a word."""


def is_in_block(name: str) -> bool:
    """Whether a module is a matrix of the repeated layers, and no router."""
    return IN_BLOCKS.search(name) is not None and not name.endswith(ROUTERS)


def is_embedding(name: str) -> bool:
    """Whether a module is a table of vectors for tokens or positions."""
    last = name.rpartition(".")[2]
    return "embed" in last or last in ("wte", "wpe", "tok_embeddings")
