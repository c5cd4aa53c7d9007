"""The tokenizer, and the tokens of what is said in a window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from jaxllm.serving.media.audio.resample import RATE
from scripts.demo_sound.clips import Word
from scripts.demo_sound.voices import WORDS

END, START, BEFORE, NO_SPEECH, NO_TIMES = SPECIAL = (
    *("<|endoftext|>", "<|startoftranscript|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"),
)
SECONDS: Final = 3
"""Of a window: a tenth of those of published models, so that a minute of training hears more of them."""
_STEP: Final = RATE // 50
"""Samples between two timestamps."""


def make_tokenizer() -> Tokenizer:
    """Bytes, and a token for each word with the space before it; special tokens and timestamps come after them."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=1000, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([f" {word}" for word in WORDS], trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    times = [f"<|{number * _STEP / RATE:.2f}|>" for number in range(SECONDS * RATE // _STEP + 1)]
    tokenizer.add_tokens([AddedToken(time, special=False, normalized=False) for time in times])
    return tokenizer


def id_of(tokenizer: Tokenizer, token: str) -> int:
    """The number of a token that is there."""
    found: int | None = tokenizer.token_to_id(token)
    assert found is not None, token
    return found


def word_ids(tokenizer: Tokenizer) -> list[int]:
    """The token of each word."""
    return [id_of(tokenizer, f"Ġ{word}") for word in WORDS]


def tokens_of(tokenizer: Tokenizer, phrases: Sequence[Sequence[Word]]) -> tuple[list[int], list[tuple[int, int]]]:
    """What is written of a window, from its start to its end, and the samples (start, end) that each token is about.

    Of a phrase that the window cuts off there is the beginning alone, so that the next window begins before it
    (arXiv 2212.04356, section 2.3).
    """
    first, size = id_of(tokenizer, NO_TIMES) + 1, SECONDS * RATE
    found, spans = [id_of(tokenizer, START)], [(0, size)]

    def write(token: int, start: int, end: int) -> None:
        found.append(token)
        spans.append((start, end))

    def write_time(place: int) -> None:
        write(first + round(place / _STEP), place - 2 * _STEP, place + 2 * _STEP)

    for phrase in phrases:
        start, end = phrase[0].start, phrase[-1].end
        if start > size - 2 * _STEP:
            break
        write_time(start)
        if end > size:
            break
        for word in phrase:
            write(id_of(tokenizer, f"Ġ{word.text}"), word.start, word.end)
        write_time(end)
    if len(found) == 1:
        write_time(0)
    write(id_of(tokenizer, END), 0, size)
    return found, spans
