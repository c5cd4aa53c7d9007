import pytest

from jaxllm.serving.text.token_bytes import TokenBytes
from jaxllm.serving.text.tokenizer import Tokenizer

TEXTS = ["The cat sat.", "emoji 🙂🙃!", "日本語のテキスト, ελληνικά", "e\u0301 \n\t two  spaces"]


@pytest.mark.parametrize("text", TEXTS)
def test_bytes_of_a_texts_tokens_are_the_text(tokenizer: Tokenizer, text: str) -> None:
    of = TokenBytes(tokenizer)
    (token_ids,) = tokenizer.encode([text])
    assert b"".join(of(token_id) for token_id in token_ids).decode() == text


@pytest.mark.parametrize("text", TEXTS[:2])
def test_byte_fallback_keeps_the_space_that_decoding_strips(fallback_tokenizer: Tokenizer, text: str) -> None:
    of = TokenBytes(fallback_tokenizer)
    (token_ids,) = fallback_tokenizer.encode([text])
    assert b"".join(of(token_id) for token_id in token_ids).decode() == " " + text


def test_half_a_character_is_shown_as_its_bytes(tokenizer: Tokenizer) -> None:
    of = TokenBytes(tokenizer)
    (token_ids,) = tokenizer.encode(["\N{SNOWMAN}"])
    assert len(token_ids) > 1, "the tokenizer has learned the character: choose a rarer one"
    shown = [of.text(token_id) for token_id in token_ids]
    assert "".join(text for text, _ in shown) == "\\xe2\\x98\\x83"
    assert not any(whole for _, whole in shown)


def test_special_tokens_are_their_names_and_unknown_ids_nothing(tokenizer: Tokenizer) -> None:
    of = TokenBytes(tokenizer)
    assert tokenizer.eos_token_id is not None
    assert of.text(tokenizer.eos_token_id) == ("<|end|>", True)
    assert of(100_000) == b""
