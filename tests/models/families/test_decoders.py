"""Decoders in the manner of GPT give transformers' logits: the prompt whole in one stack, in chunks in the other."""

import json
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
import pytest
import torch
import transformers
from jax.sharding import Mesh
from safetensors.torch import load_file, save_file

from jaxllm.models.causal_lm import load_model
from jaxllm.models.checkpoint.checkpoint import Checkpoint
from jaxllm.models.checkpoint.model_config import read_config
from jaxllm.models.errors import ModelError
from jaxllm.models.options import ForwardOptions
from jaxllm.models.sharding import make_mesh
from tests.models.paged import compiled_step, run
from tests.models.stacks import COVERING, compared
from tests.models.test_parity import CHUNKS, LENGTHS, ONE_GO, SMALL, TOKENS, expected_logits
from tests.thinned import thinned


@dataclass(frozen=True)
class Case:
    """A small random model: the name of transformers' configuration, without `Config`, and its options."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    both_stacks: bool = False
    oracle: str = "eager"
    """How transformers computes attention."""


IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
CAUSAL = {"is_decoder": True}
# Positions are counted from after the number of padding, which no prompt has.
PADDED = {**CAUSAL, "vocab_size": 136, "pad_token_id": 130, "max_position_embeddings": 131 + 112}

CASES = {
    "gpt2": Case("GPT2", both_stacks=True),
    "gpt2-unscaled-wide": Case("GPT2", {"scale_attn_weights": False, "n_inner": 96, "tie_word_embeddings": False}),
    "gpt2-scaled-by-layer": Case("GPT2", {"scale_attn_by_inverse_layer_idx": True, "activation_function": "relu"}),
    "gpt_bigcode": Case("GPTBigCode"),
    "gpt_bigcode-all-heads": Case("GPTBigCode", {"multi_query": False, "scale_attn_weights": False}),
    "gpt_neo": Case(
        "GPTNeo", {"window_size": 5, "num_hidden_layers": 4, "attention_types": [[["global", "local"], 2]]}
    ),
    "gptj": Case("GPTJ", {"rotary_dim": 8}),
    "gpt_neox": Case("GPTNeoX"),
    "gpt_neox-sequential": Case("GPTNeoX", {"use_parallel_residual": False, "attention_bias": False}),
    "opt": Case("OPT", {"ffn_dim": 96}),
    "opt-norms-behind-narrow": Case("OPT", {"ffn_dim": 96, "do_layer_norm_before": False, "word_embed_proj_dim": 32}),
    "opt-plain": Case("OPT", {"ffn_dim": 96, "enable_bias": False, "layer_norm_elementwise_affine": False}),
    "bloom": Case("Bloom"),
    "bloom-odd-heads": Case("Bloom", {"hidden_size": 48, "num_attention_heads": 6}),
    "mpt": Case("Mpt"),
    "mpt-clip": Case("Mpt", {"attn_config": {"clip_qkv": 0.7, "softmax_scale": 0.3}}),
    "falcon-7b": Case("Falcon", both_stacks=True),
    "falcon-40b": Case("Falcon", {"new_decoder_architecture": True, "num_kv_heads": 2, "ffn_hidden_size": 96}),
    "falcon-11b": Case(
        "Falcon", {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1, "bias": True}
    ),
    # The eager implementation of transformers 5.23 adds the biases twice.
    "falcon-rw": Case(
        "Falcon", {"alibi": True, "multi_query": False, "parallel_attn": False, "bias": True}, oracle="sdpa"
    ),
    "bert": Case("Bert", CAUSAL),
    "bert_generation": Case("BertGeneration", CAUSAL),
    "big_bird": Case("BigBird", {**CAUSAL, "rescale_embeddings": True, "use_bias": False}),
    "camembert": Case("Camembert", PADDED),
    "data2vec_text": Case("Data2VecText", PADDED),
    "ernie": Case("Ernie", CAUSAL),
    "electra": Case("Electra", {**CAUSAL, "embedding_size": 24}),
    "electra-untied": Case("Electra", {**CAUSAL, "embedding_size": 64, "tie_word_embeddings": False}),
    "megatron_bert": Case("MegatronBert", CAUSAL),
    "rembert": Case(
        "RemBert",
        {**CAUSAL, "input_embedding_size": 24, "output_embedding_size": 40, "hidden_act": "gelu_new"},
    ),
    "roformer": Case("RoFormer", {**CAUSAL, "embedding_size": 24}),
    "roberta": Case("Roberta", {**PADDED, "tie_word_embeddings": False}),
    "roberta_prelayernorm": Case("RobertaPreLayerNorm", PADDED),
    "xlm_roberta": Case("XLMRoberta", PADDED),
    "xlm_roberta_xl": Case("XLMRobertaXL", PADDED),
    "biogpt": Case("BioGpt"),
    "codegen": Case("CodeGen", {"rotary_dim": 8}),
    "ctrl": Case("CTRL", {"dff": 96}),
    "gpt_neox_japanese": Case("GPTNeoXJapanese", {"intermediate_multiple_size": 2}),
    "modernbert_decoder": Case("ModernBertDecoder", {**IDS, "local_attention": 10, "num_hidden_layers": 4}),
    "modernbert_decoder-biases": Case(
        "ModernBertDecoder",
        {**IDS, "norm_bias": True, "attention_bias": True, "mlp_bias": True, "classifier_bias": True}
        | {"tie_word_embeddings": False, "layer_types": ["full_attention"] * 2},
    ),
    "xglm": Case("XGLM", {"ffn_dim": 96}),
    "nanochat": Case("NanoChat", {"final_logit_softcapping": 5.0, "attention_bias": True}),
    "openai_gpt": Case("OpenAIGPT"),
    "persimmon": Case("Persimmon"),
    "phi": Case("Phi"),
    "phi-norms": Case("Phi", {"qk_layernorm": True, "partial_rotary_factor": 0.25}),
}


def save(folder: Path, case: Case) -> torch.nn.Module:
    """A random model in `folder`, with large enough weights that every option changes the logits."""
    config_class = getattr(transformers, f"{case.name}Config")
    known = {entry.name for entry in fields(config_class)} | config_class.attribute_map.keys()
    small = {key: value for key, value in SMALL.items() if key in known}
    torch.manual_seed(0)
    config = config_class(**{**small, **case.options}, attn_implementation=case.oracle)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not parameter.requires_grad:
                # A table of constants.
                continue
            around = 1.0 if parameter.ndim == 1 and name.endswith("weight") else 0.0
            parameter.copy_(torch.randn_like(parameter) * (0.3 if parameter.ndim == 1 else 0.15) + around)
    model.save_pretrained(folder)
    return model


def check(folder: Path, model: torch.nn.Module, *, both_stacks: bool, mesh: Mesh | None = None) -> None:
    """Compare with transformers: as a loop with the prompts in chunks, and as a scan with them whole."""
    random = np.random.default_rng(1)
    prompts = [random.integers(0, SMALL["vocab_size"], length).tolist() for length in LENGTHS]
    expected = expected_logits(model, prompts)
    assert min(wanted.std() for wanted in expected) > 0.3, "logits too close to each other to mean anything"
    config = read_config(folder)
    kinds: tuple[tuple[Literal["loop", "scan"], list[tuple[int, int]]], ...] = (("loop", CHUNKS), ("scan", ONE_GO))
    for kind, plan in kinds if both_stacks else kinds[:1]:
        loaded = load_model(
            Checkpoint(folder), config, ForwardOptions(stack=kind, max_model_len=64, mesh=mesh), "float32"
        )
        found = run(loaded, prompts, plan, TOKENS, compiled_step(loaded))
        for logits, wanted in zip(found, expected, strict=True):
            # Where devices share the vocabulary, it is padded.
            np.testing.assert_allclose(logits[:, : wanted.shape[1]], wanted, atol=1e-4, rtol=0, err_msg=kind)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in COVERING else pytest.mark.slow) for name in compared(CASES)]
)
def test_logits(tmp_path: Path, name: str) -> None:
    check(tmp_path, save(tmp_path, CASES[name]), both_stacks=CASES[name].both_stacks)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("Bloom", {"apply_residual_connection_post_layernorm": True}, "'apply_residual_connection_post_layernorm'"),
        ("Mpt", {"no_bias": False}, "'no_bias' = false"),
        ("Mpt", {"attn_config": {"qk_ln": True}}, "'qk_ln' = true"),
        ("Mpt", {"logit_scale": 0.5}, "'logit_scale'"),
        ("Falcon", {"num_ln_in_parallel_attn": 2}, "'num_ln_in_parallel_attn' must be 1, or 2 with"),
        ("GPTJ", {"rotary_dim": 64}, "'rotary_dim' must be even and at most 16"),
        ("Phi", {"tie_word_embeddings": True}, "'tie_word_embeddings' = true"),
        ("GPT2", {"add_cross_attention": True}, "'add_cross_attention' = true"),
    ],
)
def test_what_is_refused(tmp_path: Path, name: str, options: dict[str, Any], message: str) -> None:
    save(tmp_path, Case(name))
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **options}))
    with pytest.raises(ModelError, match=message):
        read_config(tmp_path)


def test_a_checkpoint_without_the_prefix_and_with_masks(tmp_path: Path) -> None:
    # As GPT-2 was published.
    model = save(tmp_path, Case("GPT2"))
    tensors = {name.removeprefix("transformer."): tensor.clone() for name, tensor in model.state_dict().items()}
    tensors |= {f"h.{layer}.attn.{end}": torch.ones(2) for layer in (0, 1) for end in ("bias", "masked_bias")}
    del tensors["lm_head.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    check(tmp_path, model, both_stacks=False)


@pytest.mark.parametrize("name", ["gpt2", "opt", "gpt_bigcode"])
def test_positions_end_where_the_table_does(tmp_path: Path, name: str) -> None:
    save(tmp_path, CASES[name])
    config = read_config(tmp_path)
    assert config.context_length == config.embedding.positions == 64


@pytest.mark.parametrize("name", thinned(["gpt2", "gpt_neox"], ["falcon-7b"]))
def test_two_devices(tmp_path: Path, name: str) -> None:
    """Fused weights, split over devices; the one KV head of Falcon 7B is on both."""
    mesh = make_mesh(jax.devices(), 2)
    check(tmp_path, save(tmp_path, CASES[name]), both_stacks=False, mesh=mesh)


def test_an_embedding_is_there_twice_in_files_of_torch(tmp_path: Path) -> None:
    """Under the name of the output layer, as in a state that has both."""
    save(tmp_path, CASES["biogpt"])
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["output_projection.weight"] = tensors["biogpt.embed_tokens.weight"].clone()
    save_file(tensors, tmp_path / "model.safetensors")
    load_model(Checkpoint(tmp_path), read_config(tmp_path), ForwardOptions(max_model_len=64), "float32")
