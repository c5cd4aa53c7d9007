"""Small random checkpoints in every format, alongside the models in transformers that they stand for."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file

from tests.models.quantization.formats import Format

SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 64,
    "eos_token_id": None,
    "bos_token_id": None,
    "pad_token_id": None,
}


def llama(**options: Any) -> torch.nn.Module:
    """A Llama whose matrices all divide by groups of 8, on four devices too."""
    return _random(transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**SIZES, **options})))


def qwen3_moe(**options: Any) -> torch.nn.Module:
    """Four experts alongside a router that is not quantised."""
    experts = {"moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2, "head_dim": 8}
    sizes = {**SIZES, **experts, **options}
    return _random(transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**sizes, norm_topk_prob=True)))


def deepseek_v3() -> torch.nn.Module:
    """A dense layer before one with experts in groups; matrices that blocks do not divide."""
    config = transformers.DeepseekV3Config(
        **SIZES,
        q_lora_rank=24,
        kv_lora_rank=16,
        qk_nope_head_dim=8,
        qk_rope_head_dim=4,
        v_head_dim=8,
        moe_intermediate_size=32,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=2,
        topk_group=1,
        first_k_dense_replace=1,
    )
    return _random(transformers.DeepseekV3ForCausalLM(config))


def _random(model: torch.nn.Module) -> torch.nn.Module:
    generator = torch.Generator().manual_seed(3)
    for name, parameter in model.named_parameters():
        spread = 1.0 if "embed" in name else 0.15
        with torch.no_grad():
            if parameter.ndim > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * spread)
    return model.eval()


def save(folder: Path, model: torch.nn.Module, form: Format, *, plain: Sequence[str] = ()) -> torch.nn.Module:
    """Write the model with its matrices quantised, but for those whose names end with one of `plain`.

    Returns the model of what was written.
    """
    model.save_pretrained(folder)
    tensors = _read(folder)
    found: dict[str, torch.Tensor] = {}
    dense: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        module = name.removesuffix(".weight")
        is_matrix = name.endswith(("_proj.weight", "_proj_with_mqa.weight"))
        if not is_matrix or module.endswith(tuple(plain)):
            found[name] = dense[name] = tensor
            continue
        made = form.make(tensor)
        found |= {f"{module}.{ending}": part for ending, part in made.tensors.items()}
        dense[name] = torch.from_numpy(made.dense).float()
    save_file(dense, folder / "model.safetensors", {"format": "pt"})
    wanted = type(model).from_pretrained(folder, dtype=torch.float32)
    (folder / "model.safetensors").unlink()
    save_file(found, folder / "model.safetensors", {"format": "pt"})
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "quantization_config": form.section}))
    round_activations(wanted, form.section)
    return wanted.eval()


def round_activations(model: torch.nn.Module, section: dict[str, Any]) -> None:
    """Let the linear layers of a model round what they multiply, as a section of config.json says."""
    rounding = _rounding(section)
    if rounding is not None:
        for name, module in model.named_modules():
            if isinstance(module, torch.nn.Linear) and name.endswith("_proj"):
                module.register_forward_pre_hook(lambda _, inputs: (rounding(inputs[0]),))


def _read(folder: Path) -> Mapping[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


def _rounding(section: dict[str, Any]) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """How activations are rounded by a format whose products are of 8 bits."""
    if section["quant_method"] == "fp8":
        if section["weight_block_size"]:
            return None
        static = 0.03 if section["activation_scheme"] == "static" else None
        return lambda x: _rounded(x, "float", static)
    if section["quant_method"] != "compressed-tensors":
        return None
    (group,) = section["config_groups"].values()
    inputs = group["input_activations"]
    if inputs is None or group["weights"]["num_bits"] != 8 or group["weights"]["strategy"] not in ("tensor", "channel"):
        return None
    return lambda x: _rounded(x, inputs["type"], None if inputs["dynamic"] else 0.04)


def _rounded(x: torch.Tensor, kind: str, static: float | None) -> torch.Tensor:
    largest = 127 if kind == "int" else 448
    scale = x.abs().amax(-1, keepdim=True) / largest if static is None else torch.tensor(static)
    numbers = x / scale
    if kind == "int":
        return numbers.round().clamp(-128, 127) * scale
    return numbers.clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale
