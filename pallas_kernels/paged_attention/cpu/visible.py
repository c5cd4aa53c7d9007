"""How far the tokens of a call see: up to themselves, or further where some of them see later ones."""

from typing import Any

from jaxllm.pallas_kernels.cpu_common.attention_words import W_POSITIONS, W_UNTIL
from jaxllm.pallas_kernels.cpu_common.memory import compiled, int32, word


def visible_ends(*, spans: bool) -> tuple[Any, Any]:
    """The end of what a token sees, `(work, token)`, and the furthest of several tokens, `(work, first, count)`."""
    return (_span_end, _furthest_span_end) if spans else (_own_end, _last_own_end)


@compiled
def _own_end(work: int, token: int) -> int:
    return int32(word(work, W_POSITIONS), token) + 1


@compiled
def _last_own_end(work: int, first: int, count: int) -> int:
    return int32(word(work, W_POSITIONS), first + count - 1) + 1


@compiled
def _span_end(work: int, token: int) -> int:
    return int32(word(work, W_UNTIL), token)


@compiled
def _furthest_span_end(work: int, first: int, count: int) -> int:
    end = int32(word(work, W_UNTIL), first)
    for token in range(first + 1, first + count):
        end = max(end, int32(word(work, W_UNTIL), token))
    return end
