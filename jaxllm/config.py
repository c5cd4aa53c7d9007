"""Every option of the engine, once: type, default, help and bounds live on the field.

Command-line flags, their validation and `docs/flags.md` derive from these sections (`jaxllm.flags`).
"""

import dataclasses
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Self, Union, get_args, get_origin, get_type_hints

from jaxllm.errors import ConfigError, nearest


@dataclass(frozen=True)
class OptionInfo:
    """What is known of an option beyond its type and default."""

    help: str
    minimum: float | None = None
    maximum: float | None = None
    environment: str | None = None
    foreign_environment: str | None = None
    aliases: tuple[str, ...] = ()
    synonyms: Mapping[str, str] = dataclasses.field(default_factory=dict)


def option(
    default: Any,
    help: str,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    environment: str | None = None,
    foreign_environment: str | None = None,
    aliases: tuple[str, ...] = (),
    synonyms: Mapping[str, str] | None = None,
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

    model: str = option("demo", "The model: 'demo' (ships with jaxllm), a local folder, or a Hugging Face hub id.")
    tokenizer: str | None = option(None, "Folder or hub id of the tokenizer, when it is not the model's own.")
    revision: str | None = option(None, "Branch, tag or commit of the model on the hub.")
    download_dir: str | None = option(None, "Where hub files are kept; by default Hugging Face's own cache.")
    load_format: Literal["auto", "safetensors", "dummy"] = option(
        "auto", "How weights are read. 'dummy' makes random weights from the configuration alone."
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = option(
        "auto",
        "Type of weights and activations. 'auto' follows the checkpoint; on TPU it is bfloat16 in place of float16, "
        "and on CPU float32.",
        synonyms={"half": "float16", "float": "float32"},
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
        "How a model pools, as JSON: pooling_type (last, mean, cls), normalize, use_activation, matryoshka, "
        "classifier_from_token (two tokens, of which a language model chooses one).",
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
    kv_cache_memory_bytes: int | None = option(
        None, "Size of the KV cache in bytes; overrides gpu_memory_utilization.", minimum=1
    )
    num_gpu_blocks_override: int | None = option(
        None, "Number of KV pages; overrides every estimate. Small values force preemption in tests.", minimum=2
    )
    enable_prefix_caching: bool = option(True, "Share the KV pages of equal prompt prefixes between requests.")


@dataclass(frozen=True, kw_only=True)
class SchedulerOptions(Section):
    """Who runs in a step."""

    max_num_seqs: int = option(64, "Most requests running at once.", minimum=1, maximum=4096)
    max_num_batched_tokens: int | None = option(
        None,
        "Most tokens computed in one step, prompts and decodes together. Default: 512 on CPU, else 2048.",
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
        "Devices of this host that share every matrix, each with its part of heads, layers and logits. 'auto': as few "
        "as hold the model and one of its longest requests.",
        minimum=1,
        aliases=("tp", "-tp"),
    )
    mesh: str | None = option(
        None, "The same as a mesh of named axes: 'data=1,model=4' is tensor_parallel_size=4; 'data' must be 1."
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
    compile: CompileOptions = field(default_factory=CompileOptions)
    output: OutputOptions = field(default_factory=OutputOptions)
    profiling: ProfilingOptions = field(default_factory=ProfilingOptions)
    structured: StructuredOptions = field(default_factory=StructuredOptions)

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
