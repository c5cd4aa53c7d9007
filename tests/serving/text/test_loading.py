"""Tokenizers of folders whose config.json says odd things, and files that the libraries give up on."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from jaxllm.errors import ConfigError, RequestError
from jaxllm.models.checkpoint.find_model import DEMO, find_model
from jaxllm.serving.text.cached_tokenizer import load_quickly
from jaxllm.serving.text.detokenizer import IncrementalDecoder
from jaxllm.serving.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(find_model(DEMO))


TEXT = "Hello é 123 <|im_end|>"
BASE = json.loads((find_model(DEMO) / "config.json").read_text())
FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def save(folder: Path, config: Any = None, **files: Any) -> Path:
    """The demo model's tokenizer alongside this config.json; `files` replace others, None leaves them out."""
    for name in FILES:
        if files.get(name.partition(".")[0], name) is not None:
            shutil.copy(find_model(DEMO) / name, folder)
    for name, content in {"config": config, **files}.items():
        if content is not None:
            (folder / f"{name}.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


@pytest.mark.parametrize(
    "config",
    [
        None,
        "{",
        "[1]",
        {},
        {"model_type": "unknown"},
        {"model_type": 5},
        {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
        {"rope_scaling": [1], "rope_parameters": "x"},
        {**BASE, "rope_scaling": {"type": "weird", "factor": "x"}},
        {**BASE, "num_attention_heads": 0, "hidden_size": "x", "layer_types": ["x"]},
        {**BASE, "auto_map": {"AutoConfig": "module.Config"}, "transformers_version": "x"},
        {"model_type": "mistral", "transformers_version": 5},
        {"model_type": "rag", "tokenizer_class": 5},
    ],
)
def test_config_json_does_not_matter(tmp_path: Path, config: Any, tokenizer: Tokenizer) -> None:
    found = Tokenizer.load(save(tmp_path, config))
    assert found.encode([TEXT]) == tokenizer.encode([TEXT])
    assert found.eos_token_id == tokenizer.eos_token_id
    assert found.hf.chat_template == tokenizer.hf.chat_template


def test_files_of_a_tokenizer_alone_are_enough(tmp_path: Path, tokenizer: Tokenizer) -> None:
    found = Tokenizer.load(save(tmp_path, {"model_type": "unknown"}, tokenizer_config=None))
    assert found.encode([TEXT]) == tokenizer.encode([TEXT])


@pytest.mark.parametrize("name", ["OwnTokenizer", "OwnTokenizerFast", None, ""])
def test_a_class_that_is_code_beside_complete_files_is_not_needed(
    tmp_path: Path, name: str | None, tokenizer: Tokenizer
) -> None:
    options = {"tokenizer_class": name, "auto_map": {"AutoTokenizer": ["own.OwnTokenizer", None]}}
    found = Tokenizer.load(save(tmp_path, {"model_type": "unknown"}, tokenizer_config=options))
    assert found.encode([TEXT]) == tokenizer.encode([TEXT])


def test_the_class_follows_from_the_type_of_the_model(tmp_path: Path) -> None:
    found = Tokenizer.load(save(tmp_path, {"model_type": "qwen2", "max_window_layers": "x"}))
    assert type(found.hf).__name__ == "Qwen2Tokenizer"


def broken(**changes: Any) -> dict[str, Any]:
    """A tokenizer of two letters."""
    model = {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}
    return {"version": "1.0", "added_tokens": [], "model": model, **changes}


PANICS = {
    "merges": broken(
        model={
            "type": "BPE",
            "vocab": {"a": 0, "b": 1, "ab": 2},
            "merges": [["a", "b"]],
            "continuing_subword_prefix": "é☃",
        }
    ),
    "short merges": broken(model={"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "b"]]}),
    "normalizer": broken(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
    "chunks": broken(pre_tokenizer={"type": "FixedLength", "length": 0}),
    "template": broken(
        post_processor={
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "X", "type_id": 0}}],
            "pair": [],
            "special_tokens": {},
        }
    ),
    "decoder": broken(decoder={"type": "Strip", "content": "a", "start": 10, "stop": 10}),
    "regex": broken(
        pre_tokenizer={"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": False}
    ),
    "no object": [1],
    "huge id": broken(model={"type": "BPE", "vocab": {"a": 2**40}, "merges": []}),
}


@pytest.mark.parametrize("kind", PANICS)
def test_a_broken_file_is_an_error_of_the_configuration(tmp_path: Path, kind: str) -> None:
    """Some of them are panics in Rust, which are no exceptions of Python's."""
    folder = save(tmp_path, BASE, tokenizer=PANICS[kind], tokenizer_config={})
    with pytest.raises(ConfigError) as error:
        load_quickly(folder, tmp_path / "cache")
    assert str(folder) in str(error.value)
    assert str(error.value).endswith("give another with tokenizer=...")
    assert len(str(error.value)) < 400 + len(str(folder))


def test_a_text_that_the_tokenizer_fails_on_is_an_error_of_its_request(tmp_path: Path) -> None:
    words = {"type": "WordLevel", "vocab": {"Hello": 0}, "unk_token": "<unk>"}
    found = Tokenizer.load(save(tmp_path, BASE, tokenizer=broken(model=words), tokenizer_config={}))
    assert found.encode(["Hello"]) == [[0]]
    with pytest.raises(RequestError, match="the model's tokenizer fails on this text: WordLevel error") as error:
        found.encode(["Hello", "other"])
    assert error.value.parameter == "prompt"


@pytest.mark.parametrize("token_id", [-1, 2**32, 2**64, 10**30])
def test_ids_that_no_vocabulary_has_are_errors_of_the_request(tokenizer: Tokenizer, token_id: int) -> None:
    message = f"cannot decode these token IDs, which must be between 0 and {tokenizer.size - 1}"
    with pytest.raises(RequestError, match=message):
        tokenizer.decode([1, token_id])
    with pytest.raises(RequestError, match=message):
        tokenizer.decode_batch([[1], [token_id]])
    with pytest.raises(RequestError, match=message):
        IncrementalDecoder(tokenizer).push(token_id)
