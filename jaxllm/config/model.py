"""Options of the model and its KV cache."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from jaxllm.config.kv_events import KVEventsSettings, read_kv_events
from jaxllm.config.kv_transfer import KVTransferSettings, read_kv_transfer
from jaxllm.config.option import Section, option

MAMBA_BLOCK_SIZE = 2048
"""Tokens between two snapshots of recurrent states: large, for few snapshots of a long prompt and for long chunks."""


@dataclass(frozen=True, kw_only=True)
class ModelOptions(Section):
    """The model, and the format of its weights."""

    model: str = option(
        "demo",
        "The model: 'demo', 'demo-vision' or 'demo-sound' (they ship with jaxllm), a local folder or GGUF file, or a "
        "Hugging Face Hub ID.",
    )
    tokenizer: str | None = option(None, "Local folder or Hub ID of the tokenizer. Default: the model's own tokenizer.")
    revision: str | None = option(None, "Branch, tag or commit of the model on the Hub.")
    tokenizer_revision: str | None = option(
        None, "Branch, tag or commit of the tokenizer on the Hub. Default: the model's."
    )
    hf_token: str | None = option(
        None,
        "Token for the Hugging Face Hub. Prefer the environment variable HF_TOKEN: all users of the machine can see "
        "flags.",
        shown=False,
    )
    download_dir: str | None = option(
        None, "Folder for files downloaded from the Hub. Default: Hugging Face's own cache."
    )
    load_format: Literal["auto", "safetensors", "gguf", "dummy", "sharded_state"] = option(
        "auto",
        "Format of the weights. 'auto' reads safetensors if there are any, else a GGUF file, else pytorch_model.bin "
        "(without running code from it); 'gguf' reads the GGUF file even if there are safetensors; 'dummy' makes "
        "random weights from the configuration alone; 'sharded_state' reads the output of LLM.save_sharded_state. "
        "See docs/sleep_and_weights.md.",
        synonyms={
            **dict.fromkeys(("hf", "pt", "npcache"), "auto"),
            **dict.fromkeys(("fastsafetensors", "instanttensor", "runai_streamer"), "safetensors"),
        },
    )
    weight_cache_size: float = option(
        0,
        "On CPU: GiB of disk for copies of weights as the kernels read them (about the size of the model), in "
        "~/.cache/jaxllm/weights. The first start writes them. Later starts map them into memory, which takes no time, "
        "and all engines of the machine share that memory. Those used longest ago are removed. 0: none. See "
        "docs/sleep_and_weights.md.",
        minimum=0,
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = option(
        "auto",
        "Data type of weights and activations. 'auto' follows the checkpoint, with two exceptions: float16 becomes "
        "bfloat16 on TPU and float32 on CPU, and models with recurrent layers run in float32 on CPU.",
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
        "int8, int4, fp8: quantize an unquantized checkpoint while loading, to 8 bits with one scale per output, to "
        "4 bits with one scale per 128 inputs, or to 8-bit floating point; embeddings and the output layer use 8 "
        "bits. int8_w8a8, int8_w4a8: also quantize each token's activations to 8 bits, which is faster for prompts "
        "and batches and less accurate. A checkpoint that is already quantized needs no flag; its own method (awq, "
        "bitsandbytes, compressed-tensors, fbgemm_fp8, fp8, gguf, gptq, modelopt, mxfp4) is accepted, any other is "
        "an error.",
        aliases=("-q",),
        synonyms={"awq_marlin": "awq", "gptq_marlin": "gptq", "modelopt_fp4": "modelopt"},
    )
    enable_sleep_mode: bool = option(
        False, "Allow the engine to sleep, which frees device memory until it wakes up. See docs/sleep_and_weights.md."
    )
    enable_prompt_embeds: bool = option(
        False,
        "Accept prompts given as embeddings instead of token IDs (prompt_embeds). Embeddings can encode anything, "
        "including what no text can express, so enable this for trusted users only.",
    )
    max_model_len: int | None = option(
        None,
        "Maximum number of tokens in a request, prompt and output together. Default: the model's limit, or less if "
        "the KV cache cannot hold that many.",
        minimum=2,
        synonyms={"auto": None, "-1": None},
    )
    disable_sliding_window: bool = option(
        False, "For a model with sliding windows: serve only requests that fit into the smallest window."
    )
    runner: Literal["auto", "generate", "pooling"] = option(
        "auto",
        "Task of the model: generate text, or pool text into embeddings or scores. 'auto': the task it was trained "
        "for.",
    )
    convert: Literal["auto", "none", "embed", "classify"] = option(
        "auto",
        "Output of a pooling model, if it is to differ from the one it was trained for. 'auto': its own output, "
        "or embeddings for a generative model.",
    )
    pooler_config: Mapping[str, Any] | None = option(
        None,
        "Settings of pooling, as JSON: pooling_type (last, mean, cls), task, normalize, use_activation, matryoshka, "
        "step_tag_id, classifier_from_token (the two tokens between which a language model chooses).",
        aliases=("override-pooler-config",),
        shown=True,
    )
    hf_overrides: Mapping[str, Any] | None = option(
        None,
        'Values that override those in the model\'s config.json, as JSON: {"architectures": '
        '["ColBERTModernBertModel"]}. Objects are merged.',
        shown=True,
    )
    generation_config: str = option(
        "auto",
        "Source of default sampling parameters: 'auto' for the model's generation_config.json, 'vllm' for neutral "
        "defaults, or a folder with a generation_config.json.",
    )
    override_generation_config: Mapping[str, Any] | None = option(
        None,
        'Default sampling parameters, as JSON, that override those of --generation-config: {"temperature": 0.5}.',
        shown=True,
    )
    seed: int = option(0, "Seed for dummy weights and for requests without a seed of their own.", minimum=0)


@dataclass(frozen=True, kw_only=True)
class CacheOptions(Section):
    """The paged KV cache."""

    block_size: int | None = option(
        None,
        "Tokens per page of the KV cache; prompts share whole pages. Default: 64 on TPU, else 16.",
        minimum=1,
        maximum=256,
    )
    gpu_memory_utilization: float = option(
        0.9,
        "Share of accelerator memory for weights, temporaries and KV cache together (on CPU: share of a quarter of "
        "the free RAM, for the KV cache alone). On GPU, JAX allocates this share at start-up, unless the environment "
        "variable XLA_PYTHON_CLIENT_MEM_FRACTION sets another.",
        minimum=0.01,
        maximum=1.0,
    )
    kv_cache_dtype: Literal["auto", "float32", "bfloat16", "float16", "fp8_e4m3", "fp8_e5m2", "int8"] = option(
        "auto",
        "Data type of the KV cache. 'auto' is the type for which the checkpoint has scales, else that of the "
        "activations. An 8-bit type holds twice as many tokens as bfloat16 in the same memory. 'int8' computes a "
        "scale per token and head, unless the checkpoint has scales; 'fp8' (fp8_e4m3, fp8_e5m2) uses the "
        "checkpoint's scales, or 1.",
        synonyms={"fp8": "fp8_e4m3", "half": "float16", "float": "float32"},
    )
    kv_cache_memory_bytes: int | None = option(
        None, "Size of the KV cache in bytes; overrides gpu_memory_utilization.", minimum=1
    )
    num_gpu_blocks_override: int | None = option(
        None,
        "Number of KV cache pages; overrides the computed number. Small values force preemption in tests.",
        minimum=2,
    )
    enable_prefix_caching: bool = option(True, "Share the KV cache pages of equal prompt prefixes between requests.")
    prefix_cache_retention_interval: int | Literal["dense"] = option(
        0,
        "For models with sliding windows or recurrent layers: number of tokens between the points at which a cached "
        "prefix can be resumed (rounded up to whole pages). The ends of prompts and answers and the points where "
        "prompts diverge are always retained. 'dense' retains every point, at the cost of other prefixes. Other "
        "points stay usable until their memory is needed.",
        minimum=0,
        synonyms={"None": "dense"},
    )
    max_state_snapshots: int | None = option(
        None,
        "Number of cached states of recurrent layers, in addition to those of running requests, from which prompts "
        "with equal prefixes can start. Default: as many as fit into an eighth of the cache memory, and at most 4 x "
        "max_num_seqs. 0 disables prefix caching for such models.",
        minimum=0,
        maximum=1 << 20,
    )
    mamba_block_size: int = option(
        MAMBA_BLOCK_SIZE,
        "Tokens between two snapshots of recurrent states, in whole pages, for prompts and outputs alike. The chunks "
        "of a prompt end at snapshots. Additional snapshots are taken at the end of prompts and of shared prefixes.",
        minimum=1,
    )
    disable_hybrid_kv_cache_manager: bool = option(
        False, "Keep the keys and values of all tokens in every layer, even in layers with a sliding window."
    )
    kv_offloading_size: float = option(
        0,
        "GiB of host memory for copies of KV cache pages, per engine. Prefixes that have left the device are loaded "
        "from there instead of being computed again. 0: none. See docs/kv_offloading.md.",
        minimum=0,
    )
    kv_offloading: Literal["auto", "always"] = option(
        "auto",
        "Whether kv_offloading_size applies: 'auto' copies pages to the host only if a start-up measurement finds that "
        "copying is faster than computing; 'always' skips the measurement.",
    )
    kv_offloading_path: str | None = option(
        None,
        "Folder for copies of KV cache pages in files, which outlive the engine: a restart finds prefixes there. "
        "Needs kv_offloading_size. Servers may share a folder. See docs/kv_offloading.md.",
    )
    kv_offloading_disk_size: float = option(
        64, "GiB that all files in kv_offloading_path may take together.", minimum=0.001
    )
    kv_events_config: Mapping[str, Any] | None = option(
        None,
        "Publish over ZeroMQ what the prefix cache gains and loses, in vLLM's format, for routers; as JSON or as "
        "--kv-events-config.KEY VALUE: enable_kv_cache_events, publisher, endpoint, replay_endpoint, "
        "snapshot_endpoint, topic, buffer_steps, hwm, max_queue_size. Events contain the token ids of prompts and "
        "outputs. See docs/kv_events.md.",
        shown=True,
    )
    kv_transfer_config: Mapping[str, Any] | None = option(
        None,
        "Prefill in one engine, decode in another, as JSON or as --kv-transfer-config.KEY VALUE: kv_role (kv_producer, "
        "kv_consumer or kv_both), kv_ip, kv_port, engine_id, kv_buffer_size, kv_load_failure_policy, "
        "kv_connector_extra_config. See docs/disaggregation.md.",
    )

    @property
    def copies_pages(self) -> bool:
        """Whether there are copies of pages in host memory. Raises `ConfigError`."""
        return bool(self.kv_offloading_size) or self.kv_transfer is not None

    @property
    def kv_transfer(self) -> KVTransferSettings | None:
        """Which pages go to other engines or come from them; None: none. Raises `ConfigError`."""
        return read_kv_transfer(self.kv_transfer_config)

    @property
    def kv_events(self) -> KVEventsSettings | None:
        """Where events of the prefix cache go; None: nowhere. Raises `ConfigError`."""
        return read_kv_events(self.kv_events_config)
