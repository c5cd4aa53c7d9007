"""Reading the options of rotary embeddings: kinds of scaling, and how much of a head is rotated."""

import math
from dataclasses import replace
from typing import Any, get_args

from jaxllm.models.attention_plan import RopeConfig, RopeKind
from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.errors import ModelError, nearest


def read_rope(file: ConfigFile, rope: ConfigFile | None = None, *, interleaved: bool = False) -> RopeConfig:
    """Rope options from `rope_parameters` (transformers 5) or from `rope_theta` and `rope_scaling` (before it).

    `rope` stands for the section, where there are several of them. `interleaved` says which elements of a head the
    family's checkpoints pair.
    """
    rope = rope or file.section("rope_scaling") or file.section("rope_parameters") or ConfigFile({}, file.source)
    kind = rope.text("rope_type", rope.text("type", "default"))
    kind = "longrope" if kind == "su" else kind
    known = get_args(RopeKind)
    if kind not in known:
        raise ModelError(
            f"{rope.source}: rope type {kind!r} is not supported{nearest(kind, known)} (known: {', '.join(known)})"
        )
    if any(isinstance(value, dict) for value in rope.values.values()):
        raise ModelError(f"{rope.source}: rope options per layer type are not supported for this architecture")
    theta = rope.number("rope_theta", file.number("rope_theta", 10000.0))
    if theta <= 0:
        raise ModelError(f"{rope.source}: unsupported rope_theta={theta}")
    positions = file.integer("max_position_embeddings")
    file.ignore("original_max_position_embeddings")
    # Ministral 3's defaults repeat it here, where nothing reads it.
    rope.ignore("max_position_embeddings")
    options: dict[str, Any] = {"kind": kind, "theta": theta, "trained_length": positions, "interleaved": interleaved}
    if kind != "proportional":
        options |= _rotary_size(file, rope)
    if kind in _SCALING:
        options |= _SCALING[kind](file, rope, positions)
    if options.get("factor", 1.0) <= 0:
        raise rope.wrong("factor", "positive")
    return RopeConfig(**options)


def read_grid_rope(
    file: ConfigFile, sections: tuple[int, ...], *, mixed: bool, interleaved: bool = False
) -> RopeConfig:
    """The same where positions of images are places in a grid, with these sections unless the file has others."""
    rope = file.section("rope_scaling") or file.section("rope_parameters") or ConfigFile({}, file.source)
    sections = tuple(rope.integers("mrope_section")) or sections
    rope.expect(mrope_interleaved=mixed)
    if "mrope" in (rope.values.get("rope_type"), rope.values.get("type")):
        # The name of Qwen2-VL's first files for positions without scaling.
        rope = rope.but(rope_type="default", type="default")
    found = read_rope(file, rope, interleaved=interleaved)
    head_size = file.optional_integer("head_dim") or file.integer("hidden_size") // file.integer("num_attention_heads")
    pairs = (found.rotary_size or head_size) // 2
    if len(sections) != 3 or min(sections) < 0 or (not mixed and sum(sections) != pairs):
        raise rope.wrong("mrope_section", f"three numbers, of {pairs} pairs together")
    return replace(found, sections=sections, mixes_sections=mixed)


def _rotary_size(file: ConfigFile, rope: ConfigFile) -> dict[str, Any]:
    """How much of each head is rotated, unless it is all of it. Factors of pairs are as many as there are pairs.

    Families that rotate a part give `partial_rotary_factor` a default or a name of their own; in others transformers
    does not look at it.
    """
    head_size = file.optional_integer("head_dim") or file.integer("hidden_size") // file.integer("num_attention_heads")
    part = rope.number("partial_rotary_factor", file.number("partial_rotary_factor", 1.0))
    if part != 1.0 and not file.is_known("partial_rotary_factor"):
        where = rope if rope.has("partial_rotary_factor") else file
        raise where.wrong("partial_rotary_factor", "1 in this architecture")
    size = int(head_size * part)
    if not 0 < size <= head_size or size % 2:
        raise ModelError(f"{rope.source}: unsupported partial_rotary_factor={part}")
    for key in ("short_factor", "long_factor"):
        if rope.has(key) and len(rope.numbers(key)) != size // 2:
            raise rope.wrong(key, f"a list of {size // 2} numbers, one for each pair")
    return {} if size == head_size else {"rotary_size": size}


def _trained_length(file: ConfigFile, rope: ConfigFile, positions: int) -> int:
    inner = rope.integer("original_max_position_embeddings", positions, minimum=2)
    return file.integer("original_max_position_embeddings", inner, minimum=2)


def _linear(file: ConfigFile, rope: ConfigFile, positions: int) -> dict[str, Any]:
    return {"factor": rope.number("factor")}


def _dynamic(file: ConfigFile, rope: ConfigFile, positions: int) -> dict[str, Any]:
    # With `alpha`, HunYuan's, the base is fixed, whatever else is given.
    if rope.has("alpha"):
        # HunYuan's files repeat YaRN's options alongside it.
        rope.ignore("beta_fast", "beta_slow", "mscale", "mscale_all_dim")
    return {"factor": rope.number("factor", 1.0 if rope.has("alpha") else None), "alpha": rope.optional_number("alpha")}


def _llama3(file: ConfigFile, rope: ConfigFile, positions: int) -> dict[str, Any]:
    options: dict[str, Any] = {
        "factor": rope.number("factor"),
        "trained_length": _trained_length(file, rope, positions),
    }
    options |= {key: rope.number(key) for key in ("low_freq_factor", "high_freq_factor")}
    # Equal ones, as Llama 4 Scout has them, leave nothing between kept and slowed frequencies.
    if options["high_freq_factor"] < options["low_freq_factor"]:
        raise rope.wrong("high_freq_factor", f"at least 'low_freq_factor' = {options['low_freq_factor']:g}")
    return options


def _yarn(file: ConfigFile, rope: ConfigFile, positions: int) -> dict[str, Any]:
    trained = _trained_length(file, rope, positions)
    options: dict[str, Any] = {"trained_length": trained, "factor": rope.number("factor", positions / trained)}
    options |= {key: rope.optional_number(key) for key in ("attention_factor", "mscale", "mscale_all_dim")}
    # A zero stands for "not given", as in transformers.
    options |= {"beta_fast": rope.number("beta_fast", 32) or 32.0, "beta_slow": rope.number("beta_slow", 1) or 1.0}
    return options | {"truncate": rope.boolean("truncate", True)}


def _proportional(file: ConfigFile, rope: ConfigFile, positions: int) -> dict[str, Any]:
    part = rope.number("partial_rotary_factor", 1.0)
    if not 0 < part <= 1:
        raise rope.wrong("partial_rotary_factor", "above 0 and at most 1")
    return {"part": part, "factor": rope.number("factor", 1.0)}


def _longrope(file: ConfigFile, rope: ConfigFile, positions: int) -> dict[str, Any]:
    """Factors on each pair; the one on cosine and sine follows from how far positions are stretched."""
    trained = _trained_length(file, rope, positions)
    factor = rope.number("factor", positions / trained)
    plain = math.sqrt(1 + math.log(factor) / math.log(trained)) if factor > 1 else 1.0
    given = rope.optional_number("attention_factor")
    return {
        "trained_length": trained,
        "short_factors": tuple(rope.numbers("short_factor")),
        "long_factors": tuple(rope.numbers("long_factor")),
        "attention_factor": plain if given is None else given,
    }


_SCALING = {
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "proportional": _proportional,
}
