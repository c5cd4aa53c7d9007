"""Incremental text equals text decoded at once, and stop strings do not depend on how text is cut."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxllm.serving.text.detokenizer import ContinuingDecoder, IncrementalDecoder, begun_character
from jaxllm.serving.text.tokenizer import Tokenizer

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def pieces_of(decoder: IncrementalDecoder, token_ids: Sequence[int]) -> list[str]:
    return [*(decoder.push(token_id) for token_id in token_ids), decoder.flush()]


@settings(deadline=None, max_examples=300)
@given(data=st.data(), skip=st.booleans())
def test_any_tokens_of_a_byte_level_tokenizer(tokenizer: Tokenizer, data: st.DataObject, skip: bool) -> None:
    # Past the end of the vocabulary too: models may have more rows than their tokenizer has tokens.
    token_ids = data.draw(st.lists(st.integers(0, tokenizer.size + 3), max_size=40))
    pieces = pieces_of(IncrementalDecoder(tokenizer, skip_special_tokens=skip), token_ids)
    assert "".join(pieces) == tokenizer.hf.decode(token_ids, skip_special_tokens=skip)


@settings(deadline=None, max_examples=300)
@given(
    text=st.text(alphabet=st.one_of(st.characters(codec="utf-8"), st.sampled_from("🙂🙃日本語é \n👩‍👩‍👧")), max_size=30)
)
@pytest.mark.parametrize("which", ["tokenizer", "fallback_tokenizer"])
def test_any_text(request: pytest.FixtureRequest, which: str, text: str) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(which)
    token_ids = tokenizer.encode([text])[0]
    pieces = pieces_of(IncrementalDecoder(tokenizer), token_ids)
    assert "".join(pieces) == tokenizer.hf.decode(token_ids, skip_special_tokens=True)
    if REPLACEMENT not in text:
        assert not any(REPLACEMENT in piece for piece in pieces), "half a character was shown"


@settings(deadline=None, max_examples=200)
@given(data=st.data())
def test_ill_formed_byte_runs_never_fail(fallback_tokenizer: Tokenizer, data: st.DataObject) -> None:
    """They cannot agree with the whole (it would have to take text back), but what follows them is right."""
    token_ids = data.draw(st.lists(st.integers(0, fallback_tokenizer.size - 1), max_size=30))
    ending = fallback_tokenizer.encode(["the cat"])[0]
    decoder = IncrementalDecoder(fallback_tokenizer)
    assert "".join(pieces_of(decoder, token_ids + ending)).endswith("the cat")


def test_a_character_comes_whole(tokenizer: Tokenizer) -> None:
    token_ids = tokenizer.encode(["a🙃"])[0]
    assert len(token_ids) > 2, "the emoji must be split for this test to mean anything"
    decoder = IncrementalDecoder(tokenizer)
    pieces = [decoder.push(token_id) for token_id in token_ids]
    assert pieces == ["a", *[""] * (len(token_ids) - 2), "🙃"]
    assert decoder.flush() == ""


def test_flush_shows_what_is_incomplete(tokenizer: Tokenizer) -> None:
    *most, _ = tokenizer.encode(["a🙃"])[0]
    decoder = IncrementalDecoder(tokenizer)
    assert "".join(decoder.push(token_id) for token_id in most) == "a"
    assert decoder.flush() == REPLACEMENT
    assert decoder.flush() == ""


def test_special_tokens_without_spaces(tokenizer: Tokenizer) -> None:
    start, end = 1, 2
    text = tokenizer.encode(["the"])[0]
    decoder = IncrementalDecoder(tokenizer, skip_special_tokens=False, spaces_between_special_tokens=False)
    assert "".join(pieces_of(decoder, [start, end, *text, end, end])) == "<|start|><|end|>the<|end|><|end|>"


def test_many_skipped_tokens_cost_no_more_each(tokenizer: Tokenizer) -> None:
    decoder = IncrementalDecoder(tokenizer)
    word = tokenizer.encode(["the cat"])[0]
    assert "".join(pieces_of(decoder, [2] * 20_000 + word)) == "the cat"


@settings(deadline=None, max_examples=200)
@given(text=st.text(alphabet="🙂🙃日本é a.\n", min_size=1, max_size=12), data=st.data())
def test_a_prompt_that_ends_within_a_character(tokenizer: Tokenizer, text: str, data: st.DataObject) -> None:
    token_ids = tokenizer.encode([text], add_special_tokens=False)[0]
    cut = data.draw(st.integers(1, len(token_ids)))
    prompt, rest = token_ids[:cut], token_ids[cut:]
    begun = begun_character(tokenizer, prompt)
    shown = tokenizer.decode(prompt, skip_special_tokens=False)
    assert bool(begun) == shown.endswith(REPLACEMENT)
    if begun:
        pieces = pieces_of(ContinuingDecoder(tokenizer, begun), rest)
        whole = shown + "".join(pieces)
        assert shown.rstrip(REPLACEMENT) + "".join(pieces) == text or not rest
        assert whole.rstrip(REPLACEMENT).count(REPLACEMENT) <= shown.count(REPLACEMENT)
        # A token that does not go on with the character shows itself alone.
        (other,) = tokenizer.encode(["a"], add_special_tokens=False)[0][-1:]
        assert "".join(pieces_of(ContinuingDecoder(tokenizer, begun), [other])) == "a"
        assert "".join(pieces_of(ContinuingDecoder(tokenizer, begun), [])) == ""
