"""Reading the configuration of models."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers

from jaxllm.models.attention_plan import RopeConfig
from jaxllm.models.checkpoint import config_file
from jaxllm.models.checkpoint.model_config import read_config
from jaxllm.models.errors import ModelError
from tests.models import small


def config_of(tmp_path: Path, **changes: Any) -> Any:
    values = {key: value for key, value in {**small.CONFIG, **changes}.items() if value != "absent"}
    (tmp_path / "config.json").write_text(json.dumps(values))
    return read_config(tmp_path)


def test_hostile_json(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ' + "[" * 100_000)
    with pytest.raises(ModelError, match=r"config\.json: JSON nested too deeply"):
        read_config(tmp_path)
    with pytest.raises(ModelError, match="'num_hidden_layers' must be at most 10000, found 1000000000"):
        config_of(tmp_path, num_hidden_layers=10**9)


def test_a_file_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_file, "MAX_BYTES", 10)
    with pytest.raises(ModelError, match=r"config\.json: \d+ bytes; at most 10 are supported"):
        config_of(tmp_path)


def test_a_number_of_too_many_digits(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"hidden_size": ' + "9" * 5000 + "}")
    with pytest.raises(ModelError, match=r"config\.json: a number has too many digits"):
        read_config(tmp_path)


def test_minimal_llama(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    assert (config.num_kv_heads, config.head_size, config.windows) == (2, 4, (0, 0))
    assert (config.bos_token_id, config.eos_token_ids, config.dtype) == (1, (2,), "float32")
    assert config.rope == RopeConfig(trained_length=64)
    assert hash(config) == hash(config_of(tmp_path))


def test_defaults_are_those_of_transformers(tmp_path: Path) -> None:
    sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    required = {key: small.CONFIG[key] for key in sizes}
    for name, oracle_class in {
        "LlamaForCausalLM": transformers.LlamaConfig,
        "MistralForCausalLM": transformers.MistralConfig,
        "Qwen2ForCausalLM": transformers.Qwen2Config,
        "Qwen3ForCausalLM": transformers.Qwen3Config,
    }.items():
        oracle = oracle_class(**{**required, "num_attention_heads": 32, "hidden_size": 64})
        values = {**required, "num_attention_heads": 32, "hidden_size": 64, "architectures": [name]}
        (tmp_path / "config.json").write_text(json.dumps(values))
        config = read_config(tmp_path)
        assert config.num_kv_heads == oracle.num_key_value_heads, name
        assert config.head_size == (getattr(oracle, "head_dim", None) or 2), name
        assert config.max_position_embeddings == oracle.max_position_embeddings, name
        assert config.norm is not None
        assert config.norm.eps == oracle.rms_norm_eps, name
        assert config.rope is not None, name
        assert config.rope.theta == oracle.rope_parameters["rope_theta"], name
        assert config.tie_word_embeddings == oracle.tie_word_embeddings, name
        assert config.layers[0].mlp.activation == oracle.hidden_act, name
        assert (config.bos_token_id, config.eos_token_ids) == (
            oracle.bos_token_id,
            () if oracle.eos_token_id is None else (oracle.eos_token_id,),
        ), name
        wanted_window = oracle.sliding_window if name == "MistralForCausalLM" else 0
        assert config.windows == (wanted_window,) * 2, name


def test_sliding_windows(tmp_path: Path) -> None:
    mistral = {"architectures": ["MistralForCausalLM"]}
    assert config_of(tmp_path, **mistral, sliding_window=7).windows == (7, 7)
    assert config_of(tmp_path, **mistral, sliding_window=None).windows == (0, 0)
    qwen = {"architectures": ["Qwen2ForCausalLM"], "sliding_window": 7}
    assert config_of(tmp_path, **qwen).windows == (0, 0)
    assert config_of(tmp_path, **qwen, use_sliding_window=True, max_window_layers=1).windows == (0, 7)
    types = ["sliding_attention", "full_attention"]
    assert config_of(tmp_path, **qwen, use_sliding_window=True, layer_types=types).windows == (7, 0)
    assert config_of(tmp_path, **qwen, use_sliding_window=False, layer_types=types).windows == (0, 0)


@pytest.mark.parametrize(
    ("config_eos", "generation_eos", "expected"),
    [
        (5, "absent", (5,)),
        ([5, 6, 5], "absent", (5, 6)),
        (None, "absent", ()),
        (5, [7, 8], (7, 8)),
        (5, 7, (7,)),
        (5, None, (5,)),
    ],
)
def test_end_tokens(tmp_path: Path, config_eos: Any, generation_eos: Any, expected: tuple[int, ...]) -> None:
    if generation_eos != "absent":
        (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": generation_eos}))
    assert config_of(tmp_path, eos_token_id=config_eos).eos_token_ids == expected


def test_checkpoint_type(tmp_path: Path) -> None:
    assert config_of(tmp_path, dtype="bfloat16").dtype == "bfloat16"
    assert config_of(tmp_path, dtype="absent", torch_dtype="float16").dtype == "float16"
    assert config_of(tmp_path, dtype="absent").dtype == "float32"
    half = {name: value.astype(np.float16) for name, value in small.tensors().items()}
    small.save(tmp_path, half, {key: value for key, value in small.CONFIG.items() if key != "dtype"})
    assert read_config(tmp_path).dtype == "float16"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": "absent", "model_type": "absent"}, "both 'architectures' and 'model_type' are missing"),
        ({"architectures": [], "model_type": "absent"}, "both 'architectures' and 'model_type' are missing"),
        ({"architectures": [5]}, "'architectures' must be a list of strings"),
        (
            {"architectures": ["LamaForCausalLM"]},
            "unknown architecture 'LamaForCausalLM': Lama is not supported; the nearest names are LlamaForCausalLM",
        ),
        ({"hidden_size": "absent"}, "'hidden_size' is missing"),
        ({"hidden_size": None}, "'hidden_size' is missing"),
        ({"hidden_size": "64"}, "'hidden_size' must be an integer, found \"64\""),
        ({"vocab_size": 0}, "'vocab_size' must be at least 1, found 0"),
        ({"vocab_size": True}, "'vocab_size' must be an integer, found true"),
        ({"num_hidden_layers": 1.5}, "'num_hidden_layers' must be an integer, found 1.5"),
        ({"num_key_value_heads": 3}, "4 attention heads are not a multiple of 3 KV heads"),
        ({"head_dim": 7}, "head size 7; rotary embeddings need a positive even one"),
        ({"rms_norm_eps": "x"}, "'rms_norm_eps' must be a finite number"),
        ({"tie_word_embeddings": 1}, "'tie_word_embeddings' must be true or false, found 1"),
        ({"hidden_act": 3}, "'hidden_act' must be a string, found 3"),
        ({"eos_token_id": "</s>"}, "'eos_token_id' must be a token id or a list of token ids, found \"</s>\""),
        ({"dtype": "int8"}, "'dtype' must be one of float32, bfloat16, float16, found \"int8\""),
        ({"quantization_config": {"quant_method": "aqlm"}}, "with 'aqlm' cannot be read; supported methods are awq, "),
        ({"quantization_config": {"bits": 4}}, "with 'none' cannot be read"),
        (
            {"architectures": ["ModernBertModel"], "quantization_config": {"quant_method": "gptq", "bits": 4}},
            "quantized encoders are not supported",
        ),
        (
            {"architectures": ["Qwen2ForCausalLM"], "layer_types": ["full_attention"]},
            "'layer_types' has 1 entries for 2 layers",
        ),
        (
            {"architectures": ["Qwen2ForCausalLM"], "layer_types": ["full_attention", "linear_attention"]},
            "unsupported layer type 'linear_attention'",
        ),
    ],
)
def test_bad_configurations(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError) as error:
        config_of(tmp_path, **changes)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"a": 1,\n "b": }', "config.json: invalid JSON at line 2: Expecting value"),
        (b"", "config.json: invalid JSON at line 1"),
        (b"[1]", "config.json: expected a JSON object, found a list"),
        (b'{"a": "\xff"}', "config.json: not UTF-8 text"),
    ],
)
def test_broken_json(tmp_path: Path, text: bytes, message: str) -> None:
    (tmp_path / "config.json").write_bytes(text)
    with pytest.raises(ModelError) as error:
        read_config(tmp_path)
    assert message in str(error.value)


def test_a_folder_without_configuration(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"it has no config\.json"):
        read_config(tmp_path)
