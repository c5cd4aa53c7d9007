"""Texts and pairs become the tokens that transformers makes of them, also when they are cut."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxllm.errors import RequestError
from jaxllm.serving.pooling.encode import encode
from jaxllm.serving.text.tokenizer import Tokenizer
from tests.serving.pooling.conftest import WORDS, save_tokenizer

TEXTS = st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, Any]:
    from transformers import AutoTokenizer

    folder: Path = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(folder)
    return Tokenizer.load(folder), AutoTokenizer.from_pretrained(folder)


@settings(max_examples=60)
@given(TEXTS, TEXTS.filter(bool), st.one_of(st.none(), st.integers(6, 20)), st.booleans())
def test_as_transformers(
    both: tuple[Tokenizer, Any], first: str, second: str, limit: int | None, special: bool
) -> None:
    # An empty second text is none to transformers; here it is the second text of a pair.
    ours, theirs = both
    settings = {"add_special_tokens": special, "truncation": limit is not None, "max_length": limit}
    pair, single = encode(ours, [(first, second), first], [limit, limit], add_special_tokens=special)
    wanted = theirs(first, second, **settings)
    assert list(pair.token_ids) == wanted["input_ids"]
    types = [int(pair.second_text is not None and place >= pair.second_text) for place in range(len(pair.token_ids))]
    assert types == wanted["token_type_ids"]
    assert list(single.token_ids) == theirs(first, **settings)["input_ids"]
    assert single.second_text is None


def test_no_room_beside_special_tokens(both: tuple[Tokenizer, Any]) -> None:
    with pytest.raises(RequestError, match="2 special tokens leave no room"):
        encode(both[0], ["the cat"], [2], add_special_tokens=True)
