"""What a checkpoint says about a model, independent of its family and of the spelling of its configuration."""

from dataclasses import dataclass
from typing import Any, Literal, get_args

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.errors import ModelError, nearest

RopeKind = Literal["default", "linear", "dynamic", "llama3", "yarn"]


@dataclass(frozen=True, kw_only=True)
class RopeConfig:
    """Rotary position embedding and how it is stretched beyond the trained length.

    `trained_length` is the number of positions the unscaled embedding was trained on. The fields below `factor` belong
    to one kind each: the frequency factors to llama3, the rest to yarn, where `attention_factor` multiplies cosine and
    sine.
    """

    kind: RopeKind = "default"
    theta: float = 10000.0
    trained_length: int = 2048
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Shape and options of a decoder-only model.

    `windows` holds the sliding window of each layer, 0 for none. `dtype` is the checkpoint's own. A family that needs
    more derives a frozen dataclass from this one.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    intermediate_size: int
    windows: tuple[int, ...]
    rope: RopeConfig = RopeConfig()
    activation: str = "silu"
    rms_norm_eps: float = 1e-6
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    tie_word_embeddings: bool = False
    max_position_embeddings: int = 2048
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    dtype: str = "float32"

    @property
    def context_length(self) -> int:
        """Most positions the model is made for, rope scaling included.

        Linear and yarn scaling multiply the trained length. Dynamic scaling does not count: its frequencies follow
        from the length one asks for, so the plain length is the better default.
        """
        if self.rope.kind in ("linear", "yarn"):
            return max(self.max_position_embeddings, int(self.rope.trained_length * self.rope.factor))
        return self.max_position_embeddings


def common_options(
    file: ConfigFile, *, max_positions: int, default_kv_heads: int | None = None, default_head_size: int | None = None
) -> dict[str, Any]:
    """`ModelConfig` arguments which every Llama-like configuration spells alike.

    The keyword arguments are the family's defaults for missing keys; without one there are as many KV heads as query
    heads, and the heads share the hidden size evenly.
    Raises `ModelError` for missing or impossible sizes and for options that would change the result unnoticed.
    """
    if file.section("quantization_config"):
        raise ModelError(f"{file.source}: quantised checkpoints are not supported yet ('quantization_config' is set)")
    hidden_size, num_heads = file.integer("hidden_size"), file.integer("num_attention_heads")
    num_layers = file.integer("num_hidden_layers")
    num_kv_heads = file.optional_integer("num_key_value_heads", default_kv_heads) or num_heads
    if num_heads % num_kv_heads:
        raise ModelError(f"{file.source}: {num_heads} attention heads are not a multiple of {num_kv_heads} KV heads")
    head_size = file.optional_integer("head_dim", default_head_size) or hidden_size // num_heads
    if head_size % 2 or head_size == 0:
        raise ModelError(f"{file.source}: head size {head_size}; rotary embeddings need a positive even one")
    max_position_embeddings = file.integer("max_position_embeddings", max_positions)
    return {
        "vocab_size": file.integer("vocab_size"),
        "hidden_size": hidden_size,
        "num_layers": num_layers,
        "num_heads": num_heads,
        "num_kv_heads": num_kv_heads,
        "head_size": head_size,
        "intermediate_size": file.integer("intermediate_size"),
        "windows": (0,) * num_layers,
        "rope": read_rope(file, max_position_embeddings),
        "activation": file.text("hidden_act", "silu"),
        "rms_norm_eps": file.number("rms_norm_eps", 1e-6),
        "tie_word_embeddings": file.boolean("tie_word_embeddings", False),
        "max_position_embeddings": max_position_embeddings,
    }


def layer_windows(file: ConfigFile, num_layers: int) -> tuple[int, ...]:
    """Sliding windows from `layer_types`, else from `use_sliding_window` and `max_window_layers`, as Qwen has them."""
    window = file.optional_integer("sliding_window", 4096) if file.boolean("use_sliding_window", False) else None
    if file.has("layer_types"):
        types = file.texts("layer_types")
        if len(types) != num_layers:
            raise ModelError(f"{file.source}: 'layer_types' has {len(types)} entries for {num_layers} layers")
        unknown = sorted(set(types) - {"full_attention", "sliding_attention"})
        if unknown:
            raise ModelError(f"{file.source}: unsupported layer type {unknown[0]!r} in 'layer_types'")
        return tuple((window or 0) if kind == "sliding_attention" else 0 for kind in types)
    first = file.integer("max_window_layers", 28, minimum=0)
    return tuple((window or 0) if layer >= first else 0 for layer in range(num_layers))


def read_rope(file: ConfigFile, max_position_embeddings: int) -> RopeConfig:
    """Rope options from `rope_parameters` (transformers 5) or from `rope_theta` and `rope_scaling` (before it)."""
    rope = file.section("rope_scaling") or file.section("rope_parameters") or ConfigFile({}, file.source)
    kind = rope.text("rope_type", rope.text("type", "default"))
    known = get_args(RopeKind)
    if kind not in known:
        raise ModelError(
            f"{rope.source}: rope type {kind!r} is not supported{nearest(kind, known)} (known: {', '.join(known)})"
        )
    if any(isinstance(value, dict) for value in rope.values.values()):
        raise ModelError(f"{rope.source}: rope options per layer type are not supported for this architecture")
    theta = rope.number("rope_theta", file.number("rope_theta", 10000.0))
    partial = rope.number("partial_rotary_factor", file.number("partial_rotary_factor", 1.0))
    if theta <= 0 or partial != 1.0:
        raise ModelError(f"{rope.source}: unsupported rope_theta={theta} or partial_rotary_factor={partial}")
    options: dict[str, Any] = {"kind": kind, "theta": theta, "trained_length": max_position_embeddings}
    if kind in ("linear", "dynamic", "llama3"):
        options["factor"] = rope.number("factor")
    if kind in ("llama3", "yarn"):
        inner = rope.integer("original_max_position_embeddings", max_position_embeddings)
        options["trained_length"] = file.integer("original_max_position_embeddings", inner)
    if kind == "llama3":
        options |= {key: rope.number(key) for key in ("low_freq_factor", "high_freq_factor")}
    if kind == "yarn":
        options["factor"] = rope.number("factor", max_position_embeddings / options["trained_length"])
        options |= {key: rope.optional_number(key) for key in ("attention_factor", "mscale", "mscale_all_dim")}
        # A zero stands for "not given", as in transformers.
        options |= {"beta_fast": rope.number("beta_fast", 32) or 32.0, "beta_slow": rope.number("beta_slow", 1) or 1.0}
        options["truncate"] = rope.boolean("truncate", True)
    if options.get("factor", 1.0) <= 0:
        raise rope.wrong("factor", "positive")
    if kind == "llama3" and options["high_freq_factor"] == options["low_freq_factor"]:
        raise rope.wrong("high_freq_factor", "different from 'low_freq_factor'")
    return RopeConfig(**options)
