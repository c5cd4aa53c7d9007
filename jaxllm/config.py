"""Every option of the engine, once: type, default, help and bounds live on the field.

Command-line flags, their validation and `docs/flags.md` derive from these sections (`jaxllm.flags`).
"""

import dataclasses
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Self, Union, get_args, get_origin, get_type_hints

from jaxllm.errors import ConfigError, nearest

MAMBA_BLOCK_SIZE = 2048
"""Tokens between two snapshots of recurrent states: so few snapshots of a long prompt, and so large its chunks."""
MAX_ENGINES = 64
"""Most engines behind one server."""


@dataclass(frozen=True)
class OptionInfo:
    """What is known of an option beyond its type and default."""

    help: str
    minimum: float | None = None
    maximum: float | None = None
    environment: str | None = None
    foreign_environment: str | None = None
    aliases: tuple[str, ...] = ()
    synonyms: Mapping[str, str | None] = dataclasses.field(default_factory=dict)


def option(
    default: Any,
    help: str,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    environment: str | None = None,
    foreign_environment: str | None = None,
    aliases: tuple[str, ...] = (),
    synonyms: Mapping[str, str | None] | None = None,
) -> Any:
    """A dataclass field that is a user-visible option.

    Bounds are inclusive. `environment` names the variable that gives the value when nothing else does: for secrets,
    which a command line would show to everybody on the machine; `foreign_environment` is another server's variable for
    the same. `aliases` are other names of the flag, with a dash in front if they are short ones; `synonyms` other names
    of values.
    """
    info = OptionInfo(help, minimum, maximum, environment, foreign_environment, aliases, synonyms or {})
    return field(default=default, metadata={"option": info})


@dataclass(frozen=True, kw_only=True)
class Section:
    """A frozen group of options that checks its own values."""

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for item in fields(self):
            _check(item.name, getattr(self, item.name), hints[item.name], item.metadata["option"])


def _check(name: str, value: Any, hint: Any, info: OptionInfo) -> None:
    """Raise `ConfigError` unless `value` has the type `hint` and lies within the bounds of `info`."""
    alternatives = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    if value is None and type(None) in alternatives:
        return
    choices = next((get_args(each) for each in alternatives if get_origin(each) is Literal), ())
    if value in choices:
        return
    if choices and int not in alternatives:
        hint_text = nearest(str(value), [str(choice) for choice in choices])
        raise ConfigError(f"{name}={value!r}: choose one of {', '.join(map(repr, choices))}{hint_text}")
    containers = tuple(get_origin(each) for each in alternatives if get_origin(each) in (tuple, Mapping))
    if containers:
        _check_container(name, value, containers[0])
        return
    accepted = tuple(each for each in alternatives if isinstance(each, type) and each is not type(None))
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    fits = isinstance(value, accepted) and (not isinstance(value, bool) or bool in accepted)
    if not fits and not (float in accepted and is_number):
        expected = " or ".join([*(each.__name__ for each in accepted), *map(repr, choices)])
        raise ConfigError(f"{name}={value!r}: expected {expected}")
    if is_number:
        low, high = info.minimum, info.maximum
        # Written so that NaN fails.
        if not ((low is None or value >= low) and (high is None or value <= high)):
            bounds = f"at least {low}" if high is None else f"at most {high}" if low is None else f"{low} to {high}"
            raise ConfigError(f"{name}={value}: must be {bounds}")


def _check_container(name: str, value: Any, kind: Any) -> None:
    """Raise `ConfigError` unless `value` is a tuple of texts, or a dictionary with texts as keys."""
    if not isinstance(value, kind) or not all(isinstance(item, str) for item in value):
        expected = "texts" if kind is tuple else "names and values"
        raise ConfigError(f"{name}={value!r}: expected {expected}")


@dataclass(frozen=True, kw_only=True)
class ModelOptions(Section):
    """Which model, and how its weights are held."""

    model: str = option(
        "demo", "The model: 'demo' (ships with jaxllm), a local folder or GGUF file, or a Hugging Face hub id."
    )
    tokenizer: str | None = option(None, "Folder or hub id of the tokenizer, when it is not the model's own.")
    revision: str | None = option(None, "Branch, tag or commit of the model on the hub.")
    download_dir: str | None = option(None, "Where hub files are kept; by default Hugging Face's own cache.")
    load_format: Literal["auto", "safetensors", "gguf", "dummy"] = option(
        "auto",
        "How weights are read. 'auto' takes safetensors or, without them, a GGUF file, or pytorch_model.bin, of which "
        "nothing is run; 'gguf' takes the GGUF file beside them; 'dummy' makes random weights from the configuration "
        "alone.",
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = option(
        "auto",
        "Type of weights and activations. 'auto' follows the checkpoint; on TPU it is bfloat16 in place of float16, "
        "and on CPU float32.",
        synonyms={"half": "float16", "float": "float32"},
    )
    quantization: (
        Literal["int8", "int4", "fp8", "awq", "bitsandbytes", "compressed-tensors", "gguf", "gptq", "modelopt", "mxfp4"]
        | None
    ) = option(
        None,
        "int8, int4, fp8: round an ordinary checkpoint's matrices while they are read, to 8 bits with a scale for each "
        "output, to 4 bits with one for 128 inputs, or to 8-bit floating point; embeddings and the output layer get 8 "
        "bits. A checkpoint that is quantised already is read as it is, without this; its own method (awq, "
        "bitsandbytes, compressed-tensors, fp8, gguf, gptq, modelopt, mxfp4) is accepted, and another is an error.",
        aliases=("-q",),
        synonyms={"awq_marlin": "awq", "gptq_marlin": "gptq", "modelopt_fp4": "modelopt", "None": None},
    )
    max_model_len: int | None = option(
        None,
        "Most tokens of a request, prompt and output together. Default: what the model allows, or less where the KV "
        "cache does not hold as many.",
        minimum=2,
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
    )
    hf_overrides: Mapping[str, Any] | None = option(
        None,
        "Values in place of those in the model's config.json, as JSON: "
        '{"architectures": ["ColBERTModernBertModel"]}. Objects are merged.',
    )
    generation_config: str = option(
        "auto",
        "Where parameters come from that a request leaves out: 'auto' is what the model's makers recommend, 'vllm' the "
        "plain defaults, else a folder with generation_config.json.",
    )
    override_generation_config: Mapping[str, Any] | None = option(
        None, 'Some of these parameters, as JSON, in place of those: {"temperature": 0.5}.'
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
    max_state_snapshots: int | None = option(
        None,
        "States of recurrent layers that are kept beside those of running requests, so that prompts with equal "
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


@dataclass(frozen=True, kw_only=True)
class SchedulerOptions(Section):
    """Who runs in a step."""

    max_num_seqs: int | None = option(
        None,
        "Most requests running at once. Default: 256, or 128 or 64 where memory is short; 64 on CPU and for pooling.",
        minimum=1,
        maximum=4096,
    )
    max_num_batched_tokens: int | None = option(
        None,
        "Most tokens computed in one step, prompts and decodes together. Default: 8192, or 4096 or 2048 where memory "
        "is short; 512 on CPU, else 2048 for pooling.",
        minimum=1,
    )
    scheduling_policy: Literal["fcfs", "priority"] = option(
        "fcfs", "Order of the queue: first come first served, or lowest priority number first."
    )
    long_prefill_token_threshold: int = option(
        0, "Most prompt tokens of one request in one step; 0 means only the token budget limits it.", minimum=0
    )
    async_scheduling: bool = option(
        True, "Schedule and start each step while the one before it runs, so that the device need not wait."
    )


@dataclass(frozen=True, kw_only=True)
class ParallelOptions(Section):
    """Which devices the engine runs on, and how the model lies on several."""

    device: Literal["auto", "tpu", "gpu", "cpu"] = option(
        "auto",
        "Platform to run on; the start fails where there is none. 'auto' is what JAX finds, with a warning when it is "
        "the CPU beside an accelerator.",
        synonyms={"cuda": "gpu"},
    )
    tensor_parallel_size: int | Literal["auto"] = option(
        "auto",
        "Devices that share every matrix, each with its part of heads, layers and logits. 'auto': as few "
        "as hold the model and one of its longest requests.",
        minimum=1,
        aliases=("tp", "-tp"),
    )
    pipeline_parallel_size: int = option(
        1,
        "Stages of layers, each on tensor_parallel_size devices of its own. Requests are in as many groups, and while "
        "one is in a stage, the next group is in the stage before. For devices that only a slow link joins.",
        minimum=1,
        maximum=64,
        aliases=("pp", "-pp"),
    )
    data_parallel_size: int = option(
        1,
        "Engines, each in a process of its own with a copy of the model, its devices and its KV cache. Every request "
        "goes to one of them.",
        minimum=1,
        maximum=MAX_ENGINES,
        aliases=("dp", "-dp"),
    )
    data_parallel_size_local: int | None = option(
        None,
        "Of these engines, those on this host; the server waits for other hosts to join with the others (--headless). "
        "Default: all. See docs/data_parallel.md.",
        minimum=0,
        maximum=MAX_ENGINES,
        aliases=("-dpl",),
    )
    data_parallel_start_rank: int | None = option(
        None,
        "Number of the first engine on this host; with --headless, or behind a balancer (--data-parallel-hybrid-lb, "
        "which it implies otherwise).",
        minimum=0,
        maximum=MAX_ENGINES - 1,
        aliases=("-dpr",),
    )
    data_parallel_address: str = option(
        "127.0.0.1", "Address of the server's host, at which other hosts join.", aliases=("-dpa",)
    )
    data_parallel_rpc_port: int = option(
        29550, "Port at which other hosts join the server.", minimum=1, maximum=65535, aliases=("-dpp",)
    )
    data_parallel_rank: int | None = option(
        None,
        "Number of this server's one engine, behind a balancer that chooses among data_parallel_size servers; implies "
        "--data-parallel-external-lb.",
        minimum=0,
        maximum=MAX_ENGINES - 1,
        aliases=("-dpn",),
    )
    data_parallel_external_lb: bool = option(
        False,
        "A balancer of yours chooses among the engines, each behind a server of its own: this one has number "
        "data_parallel_rank.",
        aliases=("-dpe",),
    )
    data_parallel_hybrid_lb: bool = option(
        False,
        "A balancer of yours chooses among hosts: this server chooses among its data_parallel_size_local engines, of "
        "which the first has number data_parallel_start_rank.",
        aliases=("-dph",),
    )
    data_parallel_routing: Literal["load", "prefix"] = option(
        "load",
        "Which engine gets a request: the one with the least to do (4 x waiting + running), or 'prefix', the one that "
        "was sent the same beginning of a prompt before, unless it is much busier.",
    )
    data_parallel_backend: Literal["mp", "ray"] = option(
        "mp",
        "What starts the engines' processes: 'mp' this machine's system, 'ray' a Ray cluster, where it has room.",
    )
    enable_expert_parallel: bool = option(
        False,
        "Of a mixture of experts each device has some of the experts, in place of its part of each. Their number must "
        "be a multiple of the devices'.",
        aliases=("ep", "-ep"),
    )
    mesh: str | None = option(
        None,
        "Devices as a mesh of named axes: 'model=4' is tensor_parallel_size=4; 'data=2,model=4' are two data shards of "
        "four devices, each with its own requests and KV pages, in one program. All eight share the experts of a "
        "mixture. max_num_seqs and max_num_batched_tokens are those of each shard.",
    )

    @property
    def first_rank(self) -> int:
        """Number of this server's first engine among all, where a balancer stands before several servers."""
        behind = self.data_parallel_hybrid_lb or self.data_parallel_external_lb
        return (self.data_parallel_start_rank or 0) if behind else 0

    @property
    def engines_here(self) -> int:
        """Engines on this host."""
        return self.data_parallel_size if self.data_parallel_size_local is None else self.data_parallel_size_local


@dataclass(frozen=True, kw_only=True)
class RayOptions(Section):
    """Engines whose processes a Ray cluster places, starts and restarts.

    With data_parallel_backend='ray', or distributed_executor_backend='ray'.
    """

    ray_resources: Mapping[str, Any] | None = option(
        None,
        'What each process of an engine asks of the cluster, as JSON: {"TPU": 8, "TPU-v6e-8-head": 1}. Of several '
        "processes only the first asks for a name that ends in -head. The default is its part of the TPU chips or the "
        "GPUs, or one CPU.",
    )
    ray_runtime_env: Mapping[str, Any] | None = option(
        None,
        'Ray\'s runtime environment for the engines, as JSON: {"env_vars": {"HF_HOME": "/mnt/models"}}. Variables of '
        "JAX, XLA, Hugging Face and jaxllm are copied in any case.",
    )


@dataclass(frozen=True, kw_only=True)
class DistributedOptions(Section):
    """One engine on several hosts: which of its processes this is, and where the first one is."""

    distributed_executor_backend: Literal["auto", "uniproc", "multihost", "ray", "external"] = option(
        "auto",
        "Who runs an engine's devices. 'uniproc': one process. 'multihost': one on each host, by --nnodes and so on or "
        "as the environment says (LWS_*, TPU_WORKER_*, SLURM_*, JOB_COMPLETION_INDEX). 'ray': --nnodes processes that "
        "a Ray cluster places and starts. 'external': processes in which jax.distributed is initialised already. "
        "'auto': multihost with --nnodes above 1, else uniproc.",
        synonyms={"mp": "auto", "uni": "uniproc", "external_launcher": "external"},
    )
    nnodes: int | None = option(
        None, "Processes of the engine, one on each host. Default: 1.", minimum=1, maximum=4096, aliases=("-n",)
    )
    node_rank: int | None = option(
        None,
        "Which of them this is, from 0. The first schedules and serves; the others follow it and serve nothing. "
        "Default: 0.",
        minimum=0,
        aliases=("-r",),
    )
    master_addr: str | None = option(None, "Host of the first process, as the others reach it. Default: 127.0.0.1.")
    master_port: int | None = option(
        None,
        "Port on which the first process is followed; jax.distributed uses the next one. Default: 29501.",
        minimum=1,
        maximum=65534,
    )
    distributed_timeout_seconds: int = option(
        600, "Time for all processes to come together at the start.", minimum=1, maximum=86400
    )
    distributed_secret: str | None = option(
        None,
        "What the processes of an engine must all know. With it, what they say to each other is encrypted.",
        environment="JAXLLM_DISTRIBUTED_SECRET",
    )


@dataclass(frozen=True, kw_only=True)
class CompileOptions(Section):
    """What is compiled, when, and where the result is kept."""

    enforce_eager: bool = option(False, "Compile each step shape when it is first met instead of all at start.")
    background_compilation: bool = option(
        False,
        "Be ready as soon as three step shapes are compiled, and compile the others meanwhile. Until then steps run in "
        "larger shapes, and slower.",
    )
    compilation_cache_dir: str | None = option(
        None, "Folder of the persistent compilation cache. Default: ~/.cache/jaxllm/xla; '' turns it off."
    )
    executables: str | None = option(
        None,
        "Folder made by `jaxllm compile`: its executables are used, and nothing is compiled. It is trusted like a "
        "program.",
    )
    strict_compilation: bool = option(False, "Treat a compilation after warm-up as an error.")
    optimization_level: int = option(
        1,
        "How hard XLA tries on CPU: 1 compiles in three quarters of the time of 3 or less, and runs no slower but for "
        "sampling by top-k and top-p; 0 in less, and runs slower. No effect elsewhere.",
        minimum=0,
        maximum=3,
    )
    compile_workers: int | None = option(None, "Compilations at a time during start-up. Default: the cores.", minimum=1)
    layer_stack: Literal["auto", "scan", "loop"] = option(
        "auto",
        "Layers as one scan over stacked weights, or as a loop. 'auto': scan on TPU, and on CPU where products are "
        "jaxllm's own; else a loop.",
    )
    attention_backend: Literal["auto", "reference", "xla", "tpu", "gpu", "cpu"] = option(
        "auto",
        "Implementation of paged attention. 'auto': tpu on TPU, gpu on Hopper in 16 bits, cpu on CPU where heads and "
        "pages are multiples of 16, else xla; where the kernel fails its self-test, xla with a warning. With 'cpu' "
        "matrix products in float32 and bfloat16 are jaxllm's own as well.",
    )
    attention_checks: bool = option(
        False, "For debugging: attention on TPU checks bounds and semaphores, and stops where they are wrong. Slower."
    )
    sampling_backend: Literal["auto", "reference", "xla", "tpu"] = option(
        "auto",
        "Implementation of choosing tokens. 'auto': the kernel 'tpu' on TPU, unless it fails its self-test, else xla.",
    )
    moe_backend: Literal["auto", "xla", "tpu"] = option(
        "auto",
        "Implementation of the products with experts. 'auto': the kernel 'tpu' on TPU, unless it fails its self-test, "
        "else xla. On CPU kernels of jaxllm's own come with attention_backend 'cpu'.",
    )


@dataclass(frozen=True, kw_only=True)
class OutputOptions(Section):
    """What a request may ask to be returned."""

    max_logprobs: int = option(
        20,
        "Most alternatives per token a request may ask for; -1: the whole vocabulary, which makes steps slower.",
        minimum=-1,
        maximum=1024,
    )


@dataclass(frozen=True, kw_only=True)
class ProfilingOptions(Section):
    """Traces of the device."""

    profiler_dir: str | None = option(
        None,
        "Folder for traces of the device and the host, which xprof and TensorBoard show. POST /start_profile begins "
        "one, POST /stop_profile writes it. They grow by megabytes a second.",
    )


@dataclass(frozen=True, kw_only=True)
class StructuredOptions(Section):
    """Outputs that follow a grammar."""

    structured_outputs_backend: Literal["llguidance"] = option("llguidance", "What compiles and follows grammars.")
    structured_outputs_cache_size: int = option(256, "Most compiled grammars that are kept.", minimum=1)
    structured_outputs_preload: bool = option(
        False,
        "Read the vocabulary at start instead of with the first grammar, which may hold everybody up for seconds "
        "where it is large.",
    )
    structured_outputs_canary: bool = option(
        True,
        "Try every new grammar in a process that may die of it, within limits of memory and time, before the engine "
        "compiles it. A script that trusts its grammars may turn it off; a server may not.",
    )
    disable_any_whitespace: bool = option(False, "No whitespace between the tokens of JSON, whatever requests say.")
    disable_additional_properties: bool = option(
        False, "JSON objects have only the properties that their schema names, unless it says otherwise."
    )


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """All sections together. Option names are unique across them."""

    model: ModelOptions = field(default_factory=ModelOptions)
    cache: CacheOptions = field(default_factory=CacheOptions)
    scheduler: SchedulerOptions = field(default_factory=SchedulerOptions)
    parallel: ParallelOptions = field(default_factory=ParallelOptions)
    ray: RayOptions = field(default_factory=RayOptions)
    distributed: DistributedOptions = field(default_factory=DistributedOptions)
    compile: CompileOptions = field(default_factory=CompileOptions)
    output: OutputOptions = field(default_factory=OutputOptions)
    profiling: ProfilingOptions = field(default_factory=ProfilingOptions)
    structured: StructuredOptions = field(default_factory=StructuredOptions)

    @property
    def is_on_ray(self) -> bool:
        """Whether a Ray cluster starts the processes of engines."""
        return "ray" in (self.parallel.data_parallel_backend, self.distributed.distributed_executor_backend)

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        """Build from flat option names, as `LLM(**options)` and the command line give them.

        Raises `ConfigError` for an unknown name (with the nearest known ones) or a bad value.
        """
        owner = {item.name: section for section, item in option_fields()}
        synonyms = {item.name: item.metadata["option"].synonyms for _, item in option_fields()}
        grouped: dict[str, dict[str, Any]] = {}
        for name, value in options.items():
            if name not in owner:
                raise ConfigError(f"unknown option {name!r}{nearest(name, owner)}")
            known = synonyms[name].get(value, value) if isinstance(value, str) else value
            grouped.setdefault(owner[name], {})[name] = known
        sections = {item.name: item.default_factory for item in fields(cls)}
        return cls(**{name: sections[name](**values) for name, values in grouped.items()})  # type: ignore[operator]


def option_fields() -> Iterator[tuple[str, dataclasses.Field[Any]]]:
    """Yield (section name, field) for every option, in the order of their declaration."""
    for section in fields(EngineConfig):
        assert isinstance(section.default_factory, type)
        for item in fields(section.default_factory):
            yield section.name, item
