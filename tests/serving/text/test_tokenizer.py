"""Our thin tokenizer against transformers, and its errors."""

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxllm.errors import ConfigError, RequestError
from jaxllm.serving.text.tokenizer import Tokenizer, check_text


@settings(deadline=None, max_examples=100)
@given(texts=st.lists(st.text(st.characters(codec="utf-8"), max_size=30), max_size=4), special=st.booleans())
def test_encoding_a_batch_is_transformers_encoding(tokenizer: Tokenizer, texts: list[str], special: bool) -> None:
    assert tokenizer.encode(texts, add_special_tokens=special) == [
        tokenizer.hf.encode(text, add_special_tokens=special) for text in texts
    ]


@settings(deadline=None, max_examples=100)
@given(token_ids=st.lists(st.integers(0, 359)), skip=st.booleans())
def test_decoding_is_transformers_decoding(tokenizer: Tokenizer, token_ids: list[int], skip: bool) -> None:
    want = tokenizer.hf.decode(token_ids, skip_special_tokens=skip)
    assert tokenizer.decode(token_ids, skip_special_tokens=skip) == want
    assert tokenizer.decode_batch([token_ids, []], skip_special_tokens=skip) == [want, ""]


def test_sizes_and_special_tokens(tokenizer: Tokenizer) -> None:
    assert tokenizer.size == len(tokenizer.hf) == 360
    assert tokenizer.eos_token_id == 2
    assert tokenizer.special_ids == set(tokenizer.hf.all_special_ids) | {1}
    assert tokenizer.token_text(2) == "<|end|>"
    assert tokenizer.token_text(tokenizer.encode([" the"])[0][0]).strip() in " the"


def test_a_prompt_is_never_cut_or_padded_by_the_tokenizer_file(byte_level_folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(byte_level_folder, tmp_path / "cutting")
    state = json.loads((folder / "tokenizer.json").read_text())
    state["truncation"] = {"max_length": 3, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    state["padding"] = {
        "strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 3, "pad_type_id": 0,
        "pad_token": "<pad>",
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(state))
    tokenizer = Tokenizer.load(folder)
    assert [tokenizer.decode(ids) for ids in tokenizer.encode(["a", "the cat sat on"])] == ["a", "the cat sat on"]


def test_an_end_token_written_in_text_is_one_token(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode(["<|start|>user<|end|>"])[0][0] == 1


def test_missing_and_broken_files_are_one_line(byte_level_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"^no tokenizer files.*give another with tokenizer=") as missing:
        Tokenizer.load(tmp_path)
    broken = shutil.copytree(byte_level_folder, tmp_path / "broken")
    (broken / "tokenizer.json").write_text('{"version": 1')
    with pytest.raises(ConfigError, match="cannot load a tokenizer from") as bad:
        Tokenizer.load(broken)
    assert "\n" not in f"{missing.value}{bad.value}"


def test_text_must_be_encodable() -> None:
    check_text("🙂")
    with pytest.raises(RequestError, match=r"lone surrogate '\\ud83d' at character 2") as error:
        check_text("ab\ud83d")
    assert error.value.parameter == "prompt"
    with pytest.raises(RequestError, match="expected a string, got int"):
        check_text(3)
