"""A GGUF file with its tokenizer and chat template answers as the folder that it was made from."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import transformers
from safetensors.numpy import load_file

from jaxllm import LLM, SamplingParams
from jaxllm.errors import ConfigError
from jaxllm.models.checkpoint.checkpoint import Checkpoint
from jaxllm.models.checkpoint.find_model import DEMO, find_model
from jaxllm.models.checkpoint.model_config import read_config
from jaxllm.serving.text.tokenizer import Tokenizer
from tests.models.quantization.gguf_files import add, close

CHATS = [[{"role": "user", "content": text}] for text in ("What is the capital of France?", "Tell me a short story.")]


def save_demo(path: Path, **more: Any) -> Path:
    """The demo model in float32, its vocabulary as that of GPT-2; `rope_freqs` are divisors of its frequencies."""
    factors = more.pop("rope_freqs", None)
    folder = find_model(DEMO)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokens = {**tokenizer["model"]["vocab"], **{each["content"]: each["id"] for each in tokenizer["added_tokens"]}}
    special = {each["content"]: 3 if each["special"] else 4 for each in tokenizer["added_tokens"]}
    ordered = sorted(tokens, key=lambda token: tokens[token])
    writer = gguf.GGUFWriter(path, "llama")
    keys = {
        "llama.context_length": 2048,
        "llama.embedding_length": 128,
        "llama.block_count": 4,
        "llama.feed_forward_length": 384,
        "llama.attention.head_count": 8,
        "llama.attention.head_count_kv": 4,
        "llama.attention.key_length": 32,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": ordered,
        "tokenizer.ggml.token_type": [special.get(token, 1) for token in ordered],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in tokenizer["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.eot_token_id": 0,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": (folder / "chat_template.jinja").read_text(),
    }
    for key, value in {**keys, **more}.items():
        if value is not None:
            add(writer, key, value)
    if factors is not None:
        writer.add_tensor("rope_freqs.weight", np.asarray(factors, np.float32))
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 4)
    for name, values in load_file(folder / "model.safetensors").items():
        module, _, parameter = name.rpartition(".")
        theirs = f"{names.get_name(module)}.{parameter}"
        heads = {"attn_q": 8, "attn_k": 4}.get(theirs.split(".")[-2])
        tensor = values.astype(np.float32)
        pairs = tensor.reshape(heads, 2, -1, tensor.shape[1]).swapaxes(1, 2) if heads else tensor
        writer.add_tensor(theirs, np.ascontiguousarray(pairs.reshape(tensor.shape)))
    close(writer)
    return path


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("gguf")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        yield save_demo(folder / "demo.gguf")


@pytest.mark.slow
def test_answers_are_those_of_the_folder(demo: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=24)
    texts = []
    for model in (DEMO, str(demo)):
        with LLM(model, max_model_len=256, max_num_batched_tokens=64, enforce_eager=True, optimization_level=0) as llm:
            texts.append([each.outputs[0].text for each in llm.chat(CHATS, params)])
    assert texts[0] == texts[1]
    assert all(texts[0])


def test_tokenizer_is_that_of_transformers(demo: Path) -> None:
    own = Tokenizer.load(find_model(str(demo)))
    theirs = transformers.AutoTokenizer.from_pretrained(demo.parent, gguf_file=demo.name)
    for text in ("Hello, world! 12345\n\n<|im_start|>user it's <tool_call>é☃", " a  b\t"):
        assert own.encode([text])[0] == theirs(text)["input_ids"]
    assert own.hf.chat_template == theirs.chat_template
    assert (own.eos_token_id, own.hf.bos_token) == (2, "<|endoftext|>")


@pytest.mark.parametrize(
    "keys",
    [
        {"rope_freqs": [1.0, 1, 1, 1, 1, 1.5, 2, 4, 8, 8, 8, 8, 8, 8, 8, 8]},
        {
            "llama.rope.scaling.type": "yarn",
            "llama.rope.scaling.factor": 4.0,
            "llama.rope.scaling.original_context_length": 512,
            "llama.rope.scaling.yarn_beta_fast": 16.0,
            "llama.rope.scaling.yarn_ext_factor": 1.0,
        },
        {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0},
    ],
)
def test_scaled_positions_do_not_stand_in_the_way_of_a_tokenizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: dict[str, Any]
) -> None:
    """Llama 3.1 to 3.3 have factors for their frequencies; the name of a file may be in capitals."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "files").mkdir()
    save_demo(tmp_path / "files" / "Model.GGUF", **keys)
    texts = ["Hello, world! 12345\n\n<|im_start|>user it's é☃"]
    for model in (tmp_path / "files" / "Model.GGUF", tmp_path / "files"):
        folder = find_model(str(model))
        assert Tokenizer.load(folder).encode(texts) == Tokenizer.load(find_model(DEMO)).encode(texts)
        rope = read_config(folder).rope
        assert rope is not None
        assert rope.kind != "default"
        assert Checkpoint(folder).tensors
        assert rope.beta_fast == (16.0 if rope.kind == "yarn" else 32.0)


PIECES = ["▁", "▁t", "he", "▁the", "er", "in", "▁a", "re", "on", "▁w", "or", "▁wor", "ld", "▁world", "l", "lo", "Hel"]


def save_sentencepiece(path: Path) -> Path:
    """The demo model with a vocabulary as SentencePiece's: pieces with scores, bytes, and characters."""
    special = {"<unk>": 2, "<s>": 3, "</s>": 3}
    plain = [*PIECES, "Hello", *dict.fromkeys("abcdefghijklmnopqrstuvwxyzHW,.!12345é"), "▁▁"]
    tokens = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), *dict.fromkeys(plain), "<|user|>"]
    kinds = [*special.values(), *[6] * 256, *[1] * len(dict.fromkeys(plain)), 4]
    return save_demo(
        path,
        **{
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.pre": "default",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": kinds,
            "tokenizer.ggml.merges": None,
            "tokenizer.ggml.scores": [0.0] * 259 + [-float(place) for place in range(len(tokens) - 259)],
            "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.eos_token_id": 2,
            "tokenizer.ggml.eot_token_id": 2,
            "tokenizer.ggml.unknown_token_id": 0,
            "tokenizer.ggml.add_bos_token": True,
            "tokenizer.ggml.add_space_prefix": True,
        },
    )


def test_a_tokenizer_of_sentencepiece_is_that_of_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = save_sentencepiece(tmp_path / "pieces.gguf")
    own = Tokenizer.load(find_model(str(path)))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path, gguf_file=path.name)
    for text in ("Hello world, the other  world.", "☃ é\n", " leading", "a<|user|>the"):
        found = own.encode([text])[0]
        assert found == theirs(text)["input_ids"]
        assert own.hf.decode(found, skip_special_tokens=True) == theirs.decode(found, skip_special_tokens=True)
    (found,) = own.encode(["Hello world"])
    assert own.hf.convert_ids_to_tokens(found)[0] == "<s>"
    assert "<0xE2>" in own.hf.convert_ids_to_tokens(own.encode(["☃"])[0])
    assert (own.eos_token_id, own.hf.bos_token, own.hf.unk_token) == (2, "<s>", "<unk>")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"tokenizer.ggml.pre": "kawaii"}, "'tokenizer.ggml.pre' is 'kawaii'"),
        ({"tokenizer.ggml.model": "runes"}, "cannot build a tokenizer .*runes"),
        ({"tokenizer.ggml.model": "no_vocab"}, "contains no tokenizer"),
        ({"tokenizer.ggml.eos_token_id": 10**6}, "'tokenizer.ggml.eos_token_id' must be the id of one of 1536 tokens"),
        ({"tokenizer.ggml.tokens": "all"}, "'tokenizer.ggml.tokens' must be a list"),
        ({"tokenizer.ggml.merges": ["one", "a b c"]}, "cannot build a tokenizer"),
    ],
)
def test_a_wrong_vocabulary_is_named_where_it_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: dict[str, Any], message: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = find_model(str(save_demo(tmp_path / "wrong.gguf", **keys)))
    with pytest.raises(ConfigError, match=message):
        Tokenizer.load(folder)
