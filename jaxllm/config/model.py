"""Options of the model and of its KV cache."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from jaxllm.config.option import Section, option

MAMBA_BLOCK_SIZE = 2048
"""Tokens between two snapshots of recurrent states: so few snapshots of a long prompt, and so large its chunks."""


@dataclass(frozen=True, kw_only=True)
class ModelOptions(Section):
    """Which model, and how its weights are held."""

    model: str = option(
        "demo", "The model: 'demo' (ships with jaxllm), a local folder or GGUF file, or a Hugging Face hub id."
    )
    tokenizer: str | None = option(None, "Folder or hub id of the tokenizer, when it is not the model's own.")
    revision: str | None = option(None, "Branch, tag or commit of the model on the hub.")
    tokenizer_revision: str | None = option(
        None, "Branch, tag or commit of the tokenizer on the hub, when it is not the model's."
    )
    hf_token: str | None = option(
        None,
        "Token for the Hugging Face hub. Better in the environment, as HF_TOKEN: flags are visible to everybody.",
        shown=False,
    )
    download_dir: str | None = option(None, "Where hub files are kept; by default Hugging Face's own cache.")
    load_format: Literal["auto", "safetensors", "gguf", "dummy", "sharded_state"] = option(
        "auto",
        "How weights are read. 'auto' takes safetensors or, without them, a GGUF file, or pytorch_model.bin, of which "
        "nothing is run; 'gguf' takes the GGUF file next to them; 'dummy' makes random weights from the configuration "
        "alone; 'sharded_state' reads what LLM.save_sharded_state has written. See docs/sleep_and_weights.md.",
        synonyms={
            **dict.fromkeys(("hf", "pt", "npcache"), "auto"),
            **dict.fromkeys(("fastsafetensors", "instanttensor", "runai_streamer"), "safetensors"),
        },
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = option(
        "auto",
        "Type of weights and activations. 'auto' follows the checkpoint, with two exceptions: float16 becomes bfloat16 "
        "on TPU and float32 on CPU, and models with recurrent layers run in float32 on CPU.",
        synonyms={"half": "float16", "float": "float32"},
    )
    quantization: (
        Literal[
            "int8",
            "int4",
            "fp8",
            "int8_w8a8",
            "int8_w4a8",
            "awq",
            "bitsandbytes",
            "compressed-tensors",
            "fbgemm_fp8",
            "gguf",
            "gptq",
            "modelopt",
            "mxfp4",
        ]
        | None
    ) = option(
        None,
        "int8, int4, fp8: round an ordinary checkpoint's matrices while they are read, to 8 bits with a scale for each "
        "output, to 4 bits with one for 128 inputs, or to 8-bit floating point; embeddings and the output layer get 8 "
        "bits. int8_w8a8, int8_w4a8: round activations, too, each token's to 8 bits, which is faster for prompts and "
        "batches, and less exact. A checkpoint that is quantised already is read as it is, without this; its own "
        "method (awq, bitsandbytes, compressed-tensors, fbgemm_fp8, fp8, gguf, gptq, modelopt, mxfp4) is accepted, and "
        "another is an error.",
        aliases=("-q",),
        synonyms={"awq_marlin": "awq", "gptq_marlin": "gptq", "modelopt_fp4": "modelopt"},
    )
    enable_sleep_mode: bool = option(
        False, "Let the engine sleep, which frees device memory until it wakes up. See docs/sleep_and_weights.md."
    )
    enable_prompt_embeds: bool = option(
        False,
        "Take prompts that are embeddings in place of token ids (prompt_embeds). They can be anything, so offer it to "
        "users whom you trust to know what the model makes of them.",
    )
    max_model_len: int | None = option(
        None,
        "Most tokens of a request, prompt and output together. Default: what the model allows, or less where the KV "
        "cache does not hold as many.",
        minimum=2,
        synonyms={"auto": None, "-1": None},
    )
    disable_sliding_window: bool = option(
        False, "Of a model with sliding windows serve only requests that fit the smallest of them."
    )
    runner: Literal["auto", "generate", "pooling"] = option(
        "auto",
        "What the model does: generate text, or pool it into embeddings or scores. 'auto': what it is made for.",
    )
    convert: Literal["auto", "none", "embed", "classify"] = option(
        "auto", "What a pooling model makes, if not what it is made for. 'auto': embeddings, of a model that generates."
    )
    pooler_config: Mapping[str, Any] | None = option(
        None,
        "How a model pools, as JSON: pooling_type (last, mean, cls), task, normalize, use_activation, matryoshka, "
        "step_tag_id, classifier_from_token (two tokens, of which a language model chooses one).",
        aliases=("override-pooler-config",),
        shown=True,
    )
    hf_overrides: Mapping[str, Any] | None = option(
        None,
        "Values in place of those in the model's config.json, as JSON: "
        '{"architectures": ["ColBERTModernBertModel"]}. Objects are merged.',
        shown=True,
    )
    generation_config: str = option(
        "auto",
        "Where parameters come from that a request leaves out: 'auto' is what the model's makers recommend, 'vllm' the "
        "plain defaults, else a folder with generation_config.json.",
    )
    override_generation_config: Mapping[str, Any] | None = option(
        None, 'Some of these parameters, as JSON, in place of those: {"temperature": 0.5}.', shown=True
    )
    seed: int = option(0, "Seed of dummy weights and of requests that bring no seed.", minimum=0)


@dataclass(frozen=True, kw_only=True)
class CacheOptions(Section):
    """The paged KV cache."""

    block_size: int | None = option(
        None,
        "Tokens in one page of the KV cache: what is fetched at once, and what prompts share. Default: 64 on TPU, "
        "else 16.",
        minimum=1,
        maximum=256,
    )
    gpu_memory_utilization: float = option(
        0.9,
        "Share of accelerator memory for weights, temporaries and KV cache together (on CPU: of a quarter of free RAM, "
        "for the KV cache alone). On GPU JAX takes that share at start, unless the environment variable "
        "XLA_PYTHON_CLIENT_MEM_FRACTION says otherwise.",
        minimum=0.01,
        maximum=1.0,
    )
    kv_cache_dtype: Literal["auto", "float32", "bfloat16", "float16", "fp8_e4m3", "fp8_e5m2", "int8"] = option(
        "auto",
        "Type of the KV cache. 'auto' is that of the activations, or what the checkpoint has scales for. In 8 bits the "
        "same memory holds twice as many tokens as in bfloat16. 'int8' finds a scale for each token and head, unless "
        "the checkpoint brings some; 'fp8' (fp8_e4m3, fp8_e5m2) takes those of the checkpoint, or 1.",
        synonyms={"fp8": "fp8_e4m3", "half": "float16", "float": "float32"},
    )
    kv_cache_memory_bytes: int | None = option(
        None, "Size of the KV cache in bytes; overrides gpu_memory_utilization.", minimum=1
    )
    num_gpu_blocks_override: int | None = option(
        None, "Number of KV pages; overrides every estimate. Small values force preemption in tests.", minimum=2
    )
    enable_prefix_caching: bool = option(True, "Share the KV pages of equal prompt prefixes between requests.")
    prefix_cache_retention_interval: int | Literal["dense"] = option(
        0,
        "For models with sliding windows or recurrent layers: keep what a cached prefix needs every this many tokens "
        "(rounded up to whole pages). The ends of prompts and answers, and the places where prompts began to differ, "
        "are always kept. 'dense' keeps every place, at the cost of other prefixes. Places that are not kept can still "
        "be found until their room is needed.",
        minimum=0,
        synonyms={"None": "dense"},
    )
    max_state_snapshots: int | None = option(
        None,
        "States of recurrent layers that are kept in addition to those of running requests, so that prompts with equal "
        "prefixes start from one. Default: what an eighth of the memory for caches holds, at most four for each of "
        "max_num_seqs. 0: such models share no prefixes.",
        minimum=0,
        maximum=1 << 20,
    )
    mamba_block_size: int = option(
        MAMBA_BLOCK_SIZE,
        "Tokens from one of these snapshots to the next, while prompts are computed and while answers are written, in "
        "whole pages. A prompt's chunks end there. Others are taken at the end of prompts and of what they share.",
        minimum=1,
    )
    disable_hybrid_kv_cache_manager: bool = option(
        False, "Keep the keys and values of all tokens in all layers, also in those with a sliding window."
    )
