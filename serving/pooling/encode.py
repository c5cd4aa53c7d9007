"""Texts and pairs of texts to token ids, cut to a length without losing the special tokens around them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from jaxllm.errors import RequestError
from jaxllm.serving.text.tokenizer import Tokenizer, check_text, failing_on_text


@dataclass(frozen=True)
class Encoded:
    """Token ids; those from `second_text` on are of the second of two texts, for models that are told."""

    token_ids: Sequence[int]
    second_text: int | None = None


def encode(
    tokenizer: Tokenizer,
    texts: Sequence[str | tuple[str, str]],
    limits: Sequence[int | None],
    sides: Sequence[str | None] | None = None,
    *,
    add_special_tokens: bool,
) -> list[Encoded]:
    """Token ids of texts, each of at most the tokens that `limits` says.

    A text that is too long loses its end (its beginning where `sides` says left), of two texts the longer one first,
    as in transformers.
    Raises `RequestError` when a limit does not even hold the special tokens.
    """
    # Pairs are never conversations.
    backend, plain = tokenizer.encoder(cast("Sequence[str]", texts))
    with failing_on_text():
        encodings = backend.encode_batch(plain, add_special_tokens=add_special_tokens)
    for index, (text, limit) in enumerate(zip(plain, limits, strict=True)):
        if limit is not None and len(encodings[index].ids) > limit:
            side = "left" if sides is not None and sides[index] == "left" else "right"
            encodings[index] = _cut(backend, text, limit, add_special_tokens, side)
    return [Encoded(each.ids, _second_text(each.type_ids)) for each in encodings]


def shorten(tokenizer: Tokenizer, texts: Sequence[str], most: int) -> list[str]:
    """The texts, each up to the end of its token number `most` if it has more. Raises `RequestError`."""
    for text in texts:
        check_text(text)
    backend: Any = tokenizer.hf.backend_tokenizer
    with failing_on_text():
        encodings = backend.encode_batch(list(texts), add_special_tokens=False)
    return [
        text if len(each.ids) <= most else text[: each.offsets[most - 1][1]]
        for text, each in zip(texts, encodings, strict=True)
    ]


def _cut(backend: Any, text: str | tuple[str, str], limit: int, add_special_tokens: bool, side: str) -> Any:
    """The encoding of a text, or two, within `limit` tokens."""
    is_pair = isinstance(text, tuple)
    special = backend.num_special_tokens_to_add(is_pair) if add_special_tokens else 0
    room = limit - special
    if room < (2 if is_pair else 1):
        raise RequestError(f"truncate_prompt_tokens={limit}: {special} special tokens leave no room", "prompt")
    parts = [backend.encode(each, add_special_tokens=False) for each in (text if is_pair else (text,))]
    lengths = [len(part.ids) for part in parts]
    if is_pair:
        first, second = lengths
        shorter = min(first, second, room // 2)
        lengths = [shorter, min(second, room - shorter)] if first <= second else [min(first, room - shorter), shorter]
    else:
        lengths = [room]
    for part, length in zip(parts, lengths, strict=True):
        part.truncate(length, direction="right" if is_pair else side)
    return backend.post_process(*parts, add_special_tokens=add_special_tokens)


def _second_text(types: Sequence[int]) -> int | None:
    """Where the second text begins, if the tokenizer tells texts apart."""
    return types.index(1) if 1 in types else None
