"""Texts that are too long are told without encoding them, and none that is not."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxllm.engine.validation import RequestLimits
from jaxllm.errors import PromptTooLongError
from jaxllm.requests.sampling_params import SamplingParams
from jaxllm.serving.text.input_processor import InputProcessor
from jaxllm.serving.text.tokenizer import Tokenizer

WORDS = ["the cat", " ", "\n\n", "Once upon a time", "é", "日本", "<|end|>", "x" * 40, "1234567890", "🙂"]
TEXTS = st.lists(st.sampled_from(WORDS), max_size=60).map("".join)


@given(text=TEXTS, tokens=st.integers(1, 60))
def test_only_texts_that_are_too_long_are_told(tokenizer: Tokenizer, text: str, tokens: int) -> None:
    (token_ids,) = tokenizer.encode([text], add_special_tokens=False)
    if tokenizer.length.exceeds(text, tokens):
        assert len(token_ids) > tokens


@given(text=TEXTS, tokens=st.integers(1, 20))
def test_the_end_of_a_text_has_the_same_last_tokens(tokenizer: Tokenizer, text: str, tokens: int) -> None:
    whole, end = tokenizer.encode([text, tokenizer.length.end(text, tokens)], add_special_tokens=False)
    assert end[-tokens:] == whole[-tokens:]


def test_what_is_known_of_a_tokenizer(tokenizer: Tokenizer, fallback_tokenizer: Tokenizer) -> None:
    longest = tokenizer.length.longest
    assert longest is not None
    assert tokenizer.length.exceeds("a" * (longest * 10 + 1), 10)
    assert fallback_tokenizer.length.longest is not None


@pytest.mark.parametrize("cut", [None, 5])
def test_a_text_of_megabytes_is_refused_or_cut_first(tokenizer: Tokenizer, cut: int | None) -> None:
    """No time in proportion to the text: encoding it takes seconds."""
    inputs = InputProcessor(tokenizer, RequestLimits(400, 32, 5))
    text = "the cat sat on the mat " * 500_000
    params = SamplingParams(truncate_prompt_tokens=cut)
    began = time.process_time()
    if cut is None:
        with pytest.raises(PromptTooLongError, match="characters"):
            inputs.prepare([text], params, ["a"])
    else:
        (request,) = inputs.prepare([text], params, ["a"])
        (short,) = inputs.prepare(["the cat sat on the mat " * 5], params, ["a"])
        assert request.prompt_token_ids == short.prompt_token_ids
        assert request.prompt == text
    assert time.process_time() - began < 0.5


@given(text=TEXTS, tokens=st.integers(1, 5))
def test_the_beginning_of_a_text_has_the_same_first_tokens(tokenizer: Tokenizer, text: str, tokens: int) -> None:
    whole, part = tokenizer.encode([text, tokenizer.length.beginning(text, tokens)], add_special_tokens=False)
    assert part[:tokens] == whole[:tokens]


def test_token_ids_too_many_are_refused_or_cut_first(tokenizer: Tokenizer) -> None:
    inputs = InputProcessor(tokenizer, RequestLimits(400, 32, 5))
    with pytest.raises(PromptTooLongError, match="1000000 tokens"):
        inputs.prepare([[7] * 1_000_000], SamplingParams(), ["a"])
    (request,) = inputs.prepare([[7] * 1_000_000], SamplingParams(truncate_prompt_tokens=3), ["a"])
    assert request.prompt_token_ids == [7, 7, 7]
