"""Layers that predict further tokens, compared with transformers' `generate(use_mtp=True)`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers.modeling_layers
from safetensors.torch import load_file, save_file
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    Ernie4_5_MoeConfig,
    Ernie4_5_MoeForCausalLM,
    Glm4MoeConfig,
    Glm4MoeForCausalLM,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)

from jaxllm.engine.features import speculation
from jaxllm.engine.stats import NO_DRAFTS
from jaxllm.errors import ConfigError
from jaxllm.speculation import device_drafts
from tests.e2e.driving import make_engine, request, run
from tests.e2e.test_speculation import all_of_them

LATENT = {
    "kv_lora_rank": 32, "q_lora_rank": 48, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 16,
}  # fmt: skip
EXPERTS = {"moe_intermediate_size": 32, "n_routed_experts": 8, "num_experts_per_tok": 2, "first_k_dense_replace": 1}
KINDS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "deepseek_v3": (DeepseekV3Config, DeepseekV3ForCausalLM, {**LATENT, **EXPERTS, "n_group": 2, "topk_group": 1}),
    "glm4_moe": (Glm4MoeConfig, Glm4MoeForCausalLM, {**EXPERTS, "n_group": 1, "head_dim": 16, "use_qk_norm": True}),
}
LAYERS, SIZE = 3, 64
PROMPT = list(range(5, 25))


def save_mtp(folder: Path, kind: str, further: int = 1, tokens: int = 512) -> Any:
    """A checkpoint whose layers after the last predict further tokens; returns transformers' model of it."""
    torch.manual_seed(0)
    make_config, make_model, own = KINDS[kind]
    options = {
        "vocab_size": tokens, "hidden_size": SIZE, "intermediate_size": 96, "num_attention_heads": 4,
        "num_key_value_heads": 4, "n_shared_experts": 1, "max_position_embeddings": 512, "num_mtp_layers": further,
        "bos_token_id": 0, "eos_token_id": 1, "tie_word_embeddings": False, **own,
    }  # fmt: skip
    # The further layers are made as more layers of the same model.
    longer = make_model(make_config(num_hidden_layers=LAYERS + further, **options)).float()
    with torch.no_grad():
        for parameter in longer.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4)
    longer.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    numbers = range(LAYERS, LAYERS + further)
    for prefix in (f"model.layers.{number}." for number in numbers):
        for name in ("enorm", "hnorm", "shared_head.norm"):
            tensors[f"{prefix}{name}.weight"] = torch.rand(SIZE) + 0.5
        tensors[f"{prefix}eh_proj.weight"] = torch.randn(SIZE, 2 * SIZE) * 0.1
    config = make_config(num_hidden_layers=LAYERS, architectures=[make_model.__name__], **options)
    config.save_pretrained(folder)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    model = make_model.from_pretrained(folder, dtype=torch.float32)
    # Which layers those are it tells by the number that the published checkpoint has.
    model._keys_to_ignore_on_load_unexpected = [rf"model\.layers\.{number}\..*" for number in numbers]
    return model


exhaustive = pytest.mark.exhaustive


# Of few tokens some guesses are right.
@pytest.mark.parametrize(
    ("kind", "further", "count", "tokens"),
    [
        pytest.param("glm4_moe", 1, 3, 512, marks=exhaustive),
        ("deepseek_v3", 3, 3, 8),
        pytest.param("deepseek_v3", 1, 1, 16, marks=exhaustive),
        pytest.param("deepseek_v3", 3, 5, 512, marks=exhaustive),
        pytest.param("glm4_moe", 2, 2, 9, marks=exhaustive),
        pytest.param("deepseek_v3", 3, 3, 7, marks=exhaustive),
        pytest.param("glm4_moe", 2, 1, 512, marks=exhaustive),
    ],
)
def test_drafts_and_tokens_of_transformers(
    kind: str, further: int, count: int, tokens: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = save_mtp(tmp_path, kind, further, tokens)
    wanted: dict[int, torch.Tensor] = {}
    forward = transformers.modeling_layers.MtpModel.forward

    def noting(self: Any, *args: Any, **options: Any) -> Any:
        found = forward(self, *args, **options)
        wanted[options["full_input_ids"].shape[1]] = found[1][0]
        return found

    monkeypatch.setattr(transformers.modeling_layers.MtpModel, "forward", noting)
    prompt = [token % tokens for token in PROMPT]
    output = model.generate(torch.tensor([prompt]), max_new_tokens=40, do_sample=False, use_mtp=True, eos_token_id=-1)

    made: dict[int, list[int]] = {}
    take = device_drafts.DeviceDrafts.take

    def keeping(self: Any, table: Any, slots: Any, places: Any, drafts: Any) -> None:
        made.update(zip(places.tolist(), drafts.tolist(), strict=True))
        take(self, table, slots, places, drafts)

    monkeypatch.setattr(device_drafts.DeviceDrafts, "take", keeping)
    monkeypatch.setattr(speculation, "choose_amounts", all_of_them)
    engine = make_engine(
        model=str(tmp_path), dtype="float32", max_model_len=128, max_num_seqs=4, max_num_batched_tokens=16,
        speculative_config={"method": "mtp", "num_speculative_tokens": count},
    )  # fmt: skip
    try:
        asked = {"temperature": 0, "max_tokens": 40, "ignore_eos": True}
        assert run(engine, [request("a", prompt, **asked)])["a"].token_ids == output[0, len(prompt) :].tolist()
        # transformers makes a draft with each layer; both may have made none where the last one was right.
        both = sorted(set(made) & set(wanted))
        assert len(both) > 10
        missing = [
            float(logits.max() - logits[draft])
            for place in both
            for logits, draft in zip(wanted[place], made[place], strict=False)
        ]
        assert missing == [0] * (min(further, count) * len(both))
        drafts = engine.stats().drafts
        assert drafts.num_draft_tokens > 20
        if count == further:
            # The same drafts at the same places: as many are accepted. At the end of the text fewer are allowed.
            end = len(output[0]) - further
            assert [place for place in both if place < end] == sorted(place for place in made if place < end)
            assert [place for place in both if place < end] == sorted(place for place in wanted if place < end)
            assert drafts.num_accepted_tokens > 2
        # Again, with a part of the prompt from the prefix cache, and neighbours.
        first, others = dict(made), [request(i, prompt[i:], **asked) for i in (1, 19)]
        run(engine, [request("b", prompt, **asked)])
        assert made == first
        answers = run(engine, [*others, request("c", prompt, **asked)])
        assert answers["c"].token_ids == output[0, len(prompt) :].tolist()
    finally:
        engine.close()


@exhaustive
@pytest.mark.parametrize("way", [{"tensor_parallel_size": 2}, {"mesh": "data=2"}], ids=["model", "data"])
def test_several_layers_on_several_devices(
    way: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speculation, "choose_amounts", all_of_them)
    save_mtp(tmp_path, "glm4_moe", 2, 9)
    options: dict[str, Any] = {
        "model": str(tmp_path), "dtype": "float32", "max_model_len": 128, "max_num_seqs": 4, "block_size": 4,
        "max_num_batched_tokens": 16, "num_gpu_blocks_override": 40,
    }  # fmt: skip
    drafter = {"method": "mtp", "num_speculative_tokens": 4}
    found, accepted = [], []
    for own in ({}, {"speculative_config": drafter}, {"speculative_config": drafter, **way}):
        engine = make_engine(**options, **own)
        try:
            asked = {"temperature": 0, "max_tokens": 40, "ignore_eos": True}
            prompts = [[token % 9 for token in range(start, start + 6 * start)] for start in range(1, 7)]
            answers = run(engine, [request(i, prompt, **asked) for i, prompt in enumerate(prompts)])
            found.append({name: answer.token_ids for name, answer in answers.items()})
            drafts = engine.stats().drafts
            accepted.append(drafts.num_accepted_tokens / max(drafts.num_draft_tokens, 1))
        finally:
            engine.close()
    assert found[0] == found[1] == found[2]
    assert accepted[2] == pytest.approx(accepted[1], abs=0.05)
    assert accepted[1] > 0.03


def test_a_checkpoint_without_such_a_layer() -> None:
    with pytest.raises(ConfigError, match="LlamaForCausalLM has no layer that predicts further tokens"):
        make_engine(spec_method="mtp")


def test_a_checkpoint_that_lacks_its_tensors(tmp_path: Path) -> None:
    save_mtp(tmp_path, "glm4_moe")
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors[f"model.layers.{LAYERS}.eh_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match=r"model\.layers\.3\.eh_proj"):
        make_engine(model=str(tmp_path), dtype="float32", max_model_len=64, spec_method="mtp")


def _save_qwen3_next(folder: Path) -> None:
    """A hybrid model with its further layer, which has full attention, under names of its own."""
    torch.manual_seed(0)
    options = {
        "vocab_size": 256, "hidden_size": SIZE, "intermediate_size": 96, "num_attention_heads": 4, "head_dim": 16,
        "num_key_value_heads": 2, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
        "linear_value_head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32, "max_position_embeddings": 512, "tie_word_embeddings": False,
        "bos_token_id": 0, "eos_token_id": 1,
    }  # fmt: skip
    kinds = ["linear_attention", "full_attention"]
    longer = Qwen3NextForCausalLM(
        Qwen3NextConfig(num_hidden_layers=3, layer_types=[*kinds, "full_attention"], **options)
    ).float()
    longer.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    prefix = "model.layers.2."
    tensors |= {
        f"mtp.layers.0.{name.removeprefix(prefix)}": tensors.pop(name)
        for name in list(tensors)
        if name.startswith(prefix)
    }
    for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
        tensors[f"mtp.{name}.weight"] = torch.rand(SIZE) - 0.5
    tensors["mtp.fc.weight"] = torch.randn(SIZE, 2 * SIZE) * 0.1
    config = Qwen3NextConfig(num_hidden_layers=2, layer_types=kinds, architectures=["Qwen3NextForCausalLM"], **options)
    config.save_pretrained(folder)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")


def _save_ernie(folder: Path) -> None:
    """ERNIE with its further layer, which is dense and has no norm after it."""
    torch.manual_seed(0)
    options = {
        "vocab_size": 256, "hidden_size": SIZE, "intermediate_size": 96, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 32,
        "moe_num_shared_experts": 1, "moe_layer_start_index": 1, "max_position_embeddings": 512, "bos_token_id": 0,
        "eos_token_id": 1, "tie_word_embeddings": True,
    }  # fmt: skip
    model = Ernie4_5_MoeForCausalLM(Ernie4_5_MoeConfig(num_hidden_layers=3, **options)).float()
    model.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    prefix = "model.layers.0."
    tensors |= {
        f"model.mtp_block.0.{name.removeprefix(prefix)}": tensors[name] * 1.1 for name in tensors if prefix in name
    }
    for name in ("mtp_emb_norm", "mtp_hidden_norm"):
        tensors[f"model.{name}.0.weight"] = torch.rand(SIZE) + 0.5
    tensors["model.mtp_linear_proj.0.weight"] = torch.randn(SIZE, 2 * SIZE) * 0.1
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "num_nextn_predict_layers": 1}))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")


# `tests/e2e/images/test_qwen_drafts.py` has the layers of Qwen3.5, which are those of Qwen3-Next.
@pytest.mark.parametrize(
    "save", [pytest.param(_save_qwen3_next, marks=pytest.mark.exhaustive), _save_ernie], ids=["qwen3_next", "ernie"]
)
def test_further_layers_that_transformers_does_not_run(
    save: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speculation, "choose_amounts", all_of_them)
    save(tmp_path)
    found, drafts = [], NO_DRAFTS
    for options in ({}, {"speculative_config": {"method": "mtp", "num_speculative_tokens": 2}}):
        engine = make_engine(
            model=str(tmp_path),
            dtype="float32",
            max_model_len=128,
            max_num_seqs=4,
            max_num_batched_tokens=16,
            **options,
        )  # fmt: skip
        try:
            asked = [
                request(i, range(5, 12 + 9 * i), temperature=i % 2, seed=i, max_tokens=20, ignore_eos=True)
                for i in range(3)
            ]
            found.append({name: answer.token_ids for name, answer in run(engine, asked).items()})
            drafts = engine.stats().drafts
        finally:
            engine.close()
    assert found[0] == found[1]
    assert drafts.num_draft_tokens > 60
