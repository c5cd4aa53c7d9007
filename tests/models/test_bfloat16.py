"""In bfloat16 on CPUs, what is computed is as close to float32 as what transformers computes in bfloat16."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

from jaxllm.models.causal_lm import load_model
from jaxllm.models.checkpoint.checkpoint import Checkpoint
from jaxllm.models.checkpoint.model_config import read_config
from jaxllm.models.options import ForwardOptions
from jaxllm.pallas_kernels.cpu_common.processor import host_processor
from scripts.demo_model import held_out
from tests.models.paged import WIDTH, compiled_step, empty_cache, make_batch, shuffled_pages
from tests.thinned import thinned

SIZES: dict[str, Any] = {
    "vocab_size": 256, "hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 256, "eos_token_id": None,
    "bos_token_id": None, "pad_token_id": None, "attn_implementation": "eager",
}  # fmt: skip
FAMILIES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM, {}),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM, {}),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM, {}),
    "gemma2": (transformers.Gemma2Config, transformers.Gemma2ForCausalLM, {"sliding_window": 24}),
    "deepseek_v2": (
        transformers.DeepseekV2Config,
        transformers.DeepseekV2ForCausalLM,
        {
            "kv_lora_rank": 96,
            "q_lora_rank": None,
            "qk_rope_head_dim": 32,
            "qk_nope_head_dim": 32,
            "v_head_dim": 32,
            "num_key_value_heads": 4,
            "num_attention_heads": 4,
            "first_k_dense_replace": 3,
            "num_experts_per_tok": 2,
            "head_dim": 32,
        },
    ),
    "mixtral": (transformers.MixtralConfig, transformers.MixtralForCausalLM, {"num_local_experts": 4}),
}
LONGEST = 250
"""Tokens of a text of the demo model: two fit into the pages of the tests' cache."""
NATIVE = {"attention": "cpu_pairs", "multiplies_pairs": True}
WIDENED = {"attention": "cpu", "multiplies_pairs": False}
KINDS = [
    pytest.param(
        NATIVE,
        id="native",
        marks=pytest.mark.skipif(not host_processor().multiplies_bfloat16, reason="the processor has no AVX512-BF16"),
    ),
    pytest.param(WIDENED, id="widened"),
]


@pytest.fixture(autouse=True)
def pages_of_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.models.paged.PAGE_SIZE", 16)


def ours(folder: Path, kind: dict[str, Any], prompts: list[list[int]]) -> np.ndarray:
    """Logits of all tokens, [T, V], each prompt a row of one step."""
    options = ForwardOptions(stack="scan", native_matmul=True, max_model_len=16 * WIDTH, **kind)
    model = load_model(Checkpoint(folder), read_config(folder), options, "bfloat16")
    state, step = compiled_step(model)
    tokens = sum(map(len, prompts))
    batch = make_batch(prompts, [0] * len(prompts), shuffled_pages(len(prompts)), tokens)
    return np.asarray(step(state, batch, empty_cache(model, "bfloat16"))[0]).astype(np.float32)


def theirs(folder: Path, dtype: torch.dtype, prompts: list[list[int]]) -> np.ndarray:
    """The same by transformers, each prompt alone."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()
    with torch.no_grad():
        return np.concatenate([model(torch.tensor([prompt])).logits[0].float().numpy() for prompt in prompts])


def rms(errors: np.ndarray) -> float:
    return float(np.sqrt(np.mean(errors**2)))


@pytest.fixture(scope="module", params=thinned(["llama", "deepseek_v2", "mixtral"], ["gemma2", "qwen2", "qwen3"]))
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[int]]]:
    """A random checkpoint in bfloat16, and prompts."""
    folder = tmp_path_factory.mktemp(request.param)
    config_class, model_class, values = FAMILIES[request.param]
    torch.manual_seed(0)
    model = model_class(config_class(**{**SIZES, **values}))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                parameter.normal_(std=0.1)
    model.to(torch.bfloat16).save_pretrained(folder)
    random = np.random.default_rng(1)
    return folder, [random.integers(0, 256, length).tolist() for length in (90, 37, 64)]


@pytest.mark.parametrize("kind", KINDS)
def test_logits(family: tuple[Path, list[list[int]]], kind: dict[str, Any]) -> None:
    folder, prompts = family
    exact = theirs(folder, torch.float32, prompts)
    noise = rms(theirs(folder, torch.bfloat16, prompts) - exact)
    assert 0 < noise < 0.1 * exact.std()
    assert rms(ours(folder, kind, prompts) - exact) <= 1.1 * noise


@pytest.mark.parametrize("kind", KINDS)
def test_perplexity(demo_folder: Path, kind: dict[str, Any]) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(demo_folder)
    texts = (
        tokenizer.apply_chat_template(item.messages, tools=item.tools or None, tokenize=False)
        for item in held_out.prompts(seed=1, count=20)
        if item.chat
    )
    tokens = tokenizer("".join(texts))["input_ids"]
    prompts = [tokens[start : start + LONGEST] for start in (0, LONGEST)]
    assert len(prompts[1]) == LONGEST

    def surprise(logits: np.ndarray) -> np.ndarray:
        """Of every token but the first of each prompt, the negative logarithm of its probability."""
        parts = np.split(logits, np.cumsum([len(prompt) for prompt in prompts])[:-1])
        logs = [torch.log_softmax(torch.tensor(part[:-1]), dim=-1).numpy() for part in parts]
        found = [log[np.arange(len(log)), prompt[1:]] for log, prompt in zip(logs, prompts, strict=True)]
        return -np.concatenate(found)

    exact = surprise(theirs(demo_folder, torch.float32, prompts))
    noise = surprise(theirs(demo_folder, torch.bfloat16, prompts)) - exact
    errors = surprise(ours(demo_folder, kind, prompts)) - exact
    assert rms(errors) <= 1.1 * rms(noise)
    # The logarithm of the perplexity is a mean, which errors of either sign leave alone.
    assert abs(errors.mean()) <= 3 * rms(noise) / len(exact) ** 0.5
