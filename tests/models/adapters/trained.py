"""Adapters that PEFT makes of small models, with random values."""

import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import peft
import torch
from transformers.pytorch_utils import Conv1D

from tests.models.test_parity import LENGTHS, SMALL

PROMPTS = [np.random.default_rng(1).integers(0, SMALL["vocab_size"], length).tolist() for length in LENGTHS]


PASSED_OVER = ("lm_head", "output_projection", "router", ".dense.w", "shared_transformer", "dt_proj", "o_a_proj")
"""Parts of names of linear layers that get no adapter: the last one, routers of experts, which are classes of their
own, Arctic's, which tests name otherwise, blocks that several layers have in common, and those whose weights
transformers multiplies itself, so that PEFT's adapters do nothing, or fail (DeepSeek V4's groups of heads)."""

WITHOUT_INPUT = ("lara_mini",)
"""Kinds of models whose checkpoints have one tensor where transformers has several layers, before a mixer."""

WITHOUT_OUTPUT = ("falcon_h1", "mamba", "mamba2", "falcon_mamba", "nemotron_h")
"""Kinds of models where PEFT refuses adapters of the mixer's last layer."""


def linear_layers(model: torch.nn.Module) -> list[str]:
    """Names of the linear layers that get an adapter."""
    passed_over = PASSED_OVER + (("out_proj",) if model.config.model_type in WITHOUT_OUTPUT else ())
    passed_over += (".in_proj_",) if model.config.model_type in WITHOUT_INPUT else ()
    kinds, last = (torch.nn.Linear, Conv1D), model.get_output_embeddings()
    names = [name for name, module in model.named_modules() if isinstance(module, kinds) and module is not last]
    return [name for name in names if not any(part in name for part in passed_over)]


def train(model: torch.nn.Module, *, spread: float = 0.1, **options: Any) -> peft.PeftModel:
    """The model with an adapter of these options, whose values are random, with this standard deviation.

    Without other options its rank is 4, and it is on all linear layers.
    """
    targets = {"target_modules": linear_layers(model)} if "target_modules" not in options else {}
    config = peft.LoraConfig(**{"r": 4, "lora_alpha": 6, "task_type": "CAUSAL_LM", **targets, **options})
    # PEFT takes the names of shared experts' layers for those of routed ones, which are parameters in transformers 5.
    unchanged = mock.patch("peft.utils.transformers_weight_conversion.convert_peft_config_for_transformers")
    with warnings.catch_warnings(), unchanged:
        # What PEFT thinks of options is said to those who train.
        warnings.simplefilter("ignore")
        wrapped = peft.get_peft_model(model, config)
    torch.manual_seed(3)
    with torch.no_grad():
        for name, parameter in wrapped.named_parameters():
            if "lora_magnitude" in name:
                parameter.mul_(1 + 0.3 * torch.rand_like(parameter))
            elif "lora_" in name or "modules_to_save" in name or "trainable_tokens" in name:
                parameter.copy_(torch.randn_like(parameter) * spread)
            elif parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.15)
    return wrapped.eval()


def save(wrapped: peft.PeftModel, folder: Path, **options: Any) -> Path:
    """Write the adapter as PEFT does."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrapped.save_pretrained(str(folder), **options)
    return folder
