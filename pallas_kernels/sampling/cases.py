"""Cases of choosing a token, one row each, to which every implementation is held."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import Array

from jaxllm.pallas_kernels.sampling.choice import Choice

Logits = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Case:
    """One row: a name in `LOGITS`, and what it asks for, as in `Choice`."""

    name: str
    logits: str = "peaked"
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


GROUP = 2048
"""Tokens so far apart share a group of candidates of the kernel for TPUs."""


def _normal(rng: np.random.Generator, size: int, deviation: float) -> Logits:
    return (rng.standard_normal(size) * deviation).astype(np.float32)


def _crowded(rng: np.random.Generator, size: int) -> Logits:
    """The most likely tokens share one group."""
    logits = _normal(rng, size, 1)
    logits[3::GROUP] += 20
    return logits


def _forbidden(rng: np.random.Generator, size: int) -> Logits:
    return np.where(rng.random(size) < 0.9, -np.inf, _normal(rng, size, 3)).astype(np.float32)


def _single(rng: np.random.Generator, size: int) -> Logits:
    logits = np.full(size, -np.inf, np.float32)
    logits[rng.integers(size)] = -5
    return logits


LOGITS: Mapping[str, Callable[[np.random.Generator, int], Logits]] = {
    "peaked": lambda rng, size: _normal(rng, size, 4),
    "flat": lambda rng, size: _normal(rng, size, 0.1),
    "negative": lambda rng, size: _normal(rng, size, 3) - 100,
    "huge": lambda rng, size: _normal(rng, size, 1e36),
    "tied": lambda rng, size: np.round(_normal(rng, size, 2)),
    "crowded": _crowded,
    "forbidden": _forbidden,
    "single": _single,
}

CASES: tuple[Case, ...] = (
    Case("greedy", temperature=0),
    Case("greedy_ties", "tied", temperature=0, top_p=0.5),
    Case("random"),
    Case("random_flat", "flat", temperature=2.0),
    Case("huge", "huge", temperature=0.5),
    Case("llama_defaults", temperature=0.6, top_p=0.9),
    Case("top_p_flat", "flat", top_p=0.9),
    Case("top_p_crowded", "crowded", top_p=0.9),
    Case("top_p_ties", "tied", top_p=0.6),
    Case("top_p_tiny", top_p=1e-6),
    Case("top_p_negative", "negative", temperature=0.7, top_p=0.8),
    Case("top_k", top_k=40),
    Case("top_k_one", top_k=1, temperature=3.0),
    Case("top_k_large", "flat", top_k=5000),
    Case("top_k_crowded", "crowded", top_k=5),
    Case("top_k_ties", "tied", top_k=7),
    Case("top_k_negative", "negative", top_k=100),
    Case("min_p", min_p=0.05, temperature=1.5),
    Case("everything", temperature=1.3, top_k=60, top_p=0.9, min_p=0.01),
    Case("everything_flat", "flat", temperature=1.3, top_k=3000, top_p=0.8, min_p=0.7),
    Case("forbidden", "forbidden", top_p=0.95),
    Case("forbidden_top_k", "forbidden", top_k=9000),
    Case("single", "single", temperature=2.0, top_p=0.9),
    Case("single_top_k", "single", top_k=3),
)


def make_inputs(size: int, seed: int = 0) -> tuple[Array, Choice]:
    """Logits of all cases, float32 [cases, size], and what their rows ask for; `seed` is that of their chances."""
    rows = [LOGITS[case.logits](np.random.default_rng(place), size) for place, case in enumerate(CASES)]

    def column(name: str, dtype: type) -> Array:
        return jnp.asarray([getattr(case, name) for case in CASES], dtype)

    chance = np.random.default_rng(seed).random((len(CASES), 2), np.float32)
    floats = {name: column(name, np.float32) for name in ("temperature", "top_p", "min_p")}
    return jnp.asarray(np.stack(rows)), Choice(**floats, top_k=column("top_k", np.int32), chance=jnp.asarray(chance))
