"""Latent attention on the device: its cases with a model's sizes, and how fast it reads latents in a decode."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from jaxllm.doctor.timing import best_seconds
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.models.kv_shape import latent_sizes
from jaxllm.pallas_kernels.latent_attention.backend import LatentBackend, LatentOptions, get_latent_backend
from jaxllm.pallas_kernels.latent_attention.cases import CASES, LAYER, Case, Inputs, make_inputs, minimum_bytes

_DECODES = {"cpu": (4, 256)}
_OTHER_DECODES = (64, 1024)
"""Rows of the decode that is timed, and tokens of each."""
_REPEATS = {"cpu": 10}
_OTHER_REPEATS = 200
"""Enough that the copy of the cache, which one call makes, is a small part."""


def suited_latent_cases(resolved: ResolvedConfig) -> Iterator[Case]:
    """The cases with the model's heads, latents, pages and type; those that become the same only once."""
    seen = set()
    for case in CASES:
        own = _model_case(case, resolved)
        key = replace(own, name="")
        if key not in seen:
            seen.add(key)
            yield own


def decode_bandwidth(resolved: ResolvedConfig) -> float:
    """Bytes per second of a step of decodes in one layer, with the fewest that it must move."""
    rows, tokens = _DECODES.get(resolved.platform, _OTHER_DECODES)
    repeats = _REPEATS.get(resolved.platform, _OTHER_REPEATS)
    case = _model_case(Case("decode", ((1, tokens - 1),) * rows), resolved)
    inputs, backend = make_inputs(case), get_latent_backend(resolved.backend("attention"))
    own = jax.jit(backend.from_canonical, static_argnums=1)(inputs.kv_cache, case.sizes)
    inputs = replace(inputs, kv_cache=own)
    decode = jax.jit(partial(repeated_decodes, backend, repeats))
    return minimum_bytes(case) * repeats / best_seconds(lambda: decode(inputs))


def repeated_decodes(backend: LatentBackend, times: int, inputs: Inputs) -> tuple[jax.Array, jax.Array]:
    """The case so many times in one call: what the host does is not measured. The cache is the backend's own."""

    def step(_: int, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        # Results are the next queries, so that no step begins before the last one is over.
        queries, cache = carry
        rest = inputs.q_rope, inputs.latent, inputs.k_rope, cache
        return backend.call(queries, *rest, jnp.int32(LAYER), inputs.batch, LatentOptions(inputs.case.scale))

    return lax.fori_loop(0, times, step, (inputs.q_latent, inputs.kv_cache))


def _model_case(case: Case, resolved: ResolvedConfig) -> Case:
    sizes = latent_sizes(resolved.model)
    assert sizes is not None
    return replace(
        case,
        num_heads=resolved.model.num_heads,
        latent_size=sizes.latent,
        rope_size=sizes.rope,
        page_size=resolved.page_size,
        dtype=resolved.dtype,
    )
