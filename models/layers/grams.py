"""Embeddings of n-grams: what is looked up by the last tokens together, see `GramsPlan`.

Hashes are integers of 64 bits, which accelerators do not have: here they are two of 32 bits, without a sign.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxllm.models.cache import States
from jaxllm.models.forward_context import LayerContext
from jaxllm.models.gram_plan import GramsPlan
from jaxllm.models.layers.embedding import Embedding
from jaxllm.models.layers.linear import Linear
from jaxllm.models.layers.matrix import Matrix
from jaxllm.models.layers.norm import AnyNorm, make_norm
from jaxllm.models.layers.parameter import Rows, merged
from jaxllm.models.layers.short_convolution import Convolution, convolve
from jaxllm.models.layers.states import read_states, write_states
from jaxllm.models.options import ForwardOptions
from jaxllm.pallas_kernels.linear import choose_layout

Words = tuple[jax.Array, jax.Array]
"""The upper and the lower half of integers of 64 bits; uint32 each."""


class GramTable(Embedding):
    """`weight` [rows, size] of all tables, which devices share by rows. Checkpoints have it in parts."""

    def __init__(self, plan: GramsPlan, options: ForwardOptions, *, dtype: jnp.dtype) -> None:
        rows = merged(1, {f"shard_{number}": (size, Rows()) for number, size in enumerate(plan.shards)})
        self.is_native, self.dtype = False, dtype
        layout = choose_layout((sum(plan.shards), plan.size), dtype, native=False)
        Matrix.__init__(self, layout, dtype, ("vocab", "hidden"), rows, options)


class Grams(nnx.Module):
    """See `GramsPlan`."""

    def __init__(self, plan: GramsPlan, options: ForwardOptions, *, dtype: jnp.dtype) -> None:
        self.plan, self.platform = plan, options.platform
        streams = plan.count * plan.hidden
        linear = partial(Linear, plan.found, bias=False, dtype=dtype, options=options, axes=(None, None))
        norm = partial(make_norm, plan.norm, plan.count, plan.hidden, dtype=dtype, options=options, axes=(None, None))
        self.table = GramTable(plan, options, dtype=dtype)
        self.key, self.value = linear(streams), linear(plan.hidden)
        self.key_norm, self.stream_norm, self.value_norm = norm(), norm(), norm()
        self.convolution = Convolution(
            streams, plan.width, bias=False, dtype=dtype, options=options, axis=None, dilation=len(plan.multipliers)
        )

    def __call__(self, x: jax.Array, states: States, context: LayerContext) -> tuple[jax.Array, States]:
        """What is added to streams `x` [T, n * D], and the arrays of `GramsPlan.states` with the rows' new ones."""
        plan, forward = self.plan, context.forward
        assert forward.token_ids is not None
        own, drafts = states[: len(plan.states)], states[len(plan.states) :]
        tokens, inputs = read_states(own, plan, context, x.dtype)
        last, tokens, read = self._last_tokens(forward.token_ids, tokens, drafts[:1], context)
        places = gram_rows(plan, [forward.token_ids, *last])
        found = self.table(places.reshape(-1)).reshape(len(x), plan.found)
        values = self._weighted(x, self.key(found, forward), self.value(found, forward))
        normed = self._normed(self.value_norm, values).reshape(x.shape)
        convolved, inputs, kept = self.convolution(normed, inputs, drafts[1:], context)
        added = values + jax.nn.silu(convolved.astype(jnp.float32)).astype(x.dtype)
        return added, (*write_states(own, (tokens, inputs), context), *read, *kept)

    def _last_tokens(
        self, token_ids: jax.Array, before: jax.Array, inputs: States, context: LayerContext
    ) -> tuple[list[jax.Array], jax.Array, States]:
        """The tokens before each of `token_ids` int32 [T], nearest first, int32 [T] each; and new states.

        A convolution with one tap that is 1 moves them, so that rows, drafts and slots are as elsewhere. Numbers are
        exact in float32; 0 is that there is no token.
        """
        count, reach = self.plan.before, self.plan.before + 1
        taps = np.zeros((count, reach), np.float32)
        taps[np.arange(count), reach - 2 - np.arange(count)] = 1
        numbers = jnp.broadcast_to((token_ids + 1).astype(jnp.float32)[:, None], (len(token_ids), count))
        moved, after, inputs = convolve(numbers, before, jnp.asarray(taps), None, inputs, context, self.platform)
        moved = moved.astype(jnp.int32) - 1
        separator, found = jnp.int32(self.plan.separator), list[jax.Array]()
        for back in range(count):
            is_beyond = moved[:, back] < 0
            if found:
                is_beyond |= found[-1] == separator
            found.append(jnp.where(is_beyond, separator, moved[:, back]))
        return found, after, inputs

    def _weighted(self, x: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
        """Values [T, n * D] of each stream of `x`, by how its key fits: keys [T, n * D], values [T, D]."""
        keys, streams = self._normed(self.key_norm, key), self._normed(self.stream_norm, x)
        fit = (keys.astype(jnp.float32) * streams.astype(jnp.float32)).sum(axis=-1) * self.plan.hidden**-0.5
        root = jnp.sqrt(jnp.maximum(jnp.abs(fit), 1e-6)) * jnp.sign(fit)
        wide = jax.nn.sigmoid(root)[:, :, None] * value.astype(jnp.float32)[:, None]
        return wide.astype(x.dtype).reshape(x.shape)

    def _normed(self, norm: AnyNorm, x: jax.Array) -> jax.Array:
        """Streams [T, n, D], each normalised, of `x` [T, n * D]."""
        return norm(x.reshape(len(x), self.plan.count, self.plan.hidden))


def gram_rows(plan: GramsPlan, tokens: list[jax.Array]) -> jax.Array:
    """Rows of the table int32 [T, tables], from a token and those before it, int32 [T] each."""
    each = len(plan.rows) // plan.before
    starts = np.cumsum([0, *plan.rows[:-1]])
    mixed, found = _times(tokens[0], plan.multipliers[0]), list[jax.Array]()
    for back in range(1, len(tokens)):
        upper, lower = _times(tokens[back], plan.multipliers[back])
        mixed = mixed[0] ^ upper, mixed[1] ^ lower
        own = slice((back - 1) * each, back * each)
        found.append(_remainders(mixed, plan.rows[own]) + jnp.asarray(starts[own], jnp.int32))
    return jnp.concatenate(found, axis=-1)


def _times(x: jax.Array, factor: int) -> Words:
    """`x` int32 [T], not negative, times a factor of 64 bits; the upper bits that do not fit are left out."""
    of = x.astype(jnp.uint32)
    upper, lower = (jnp.uint32(part) for part in divmod(factor & (2**64 - 1), 2**32))
    x_high, x_low, f_high, f_low = of >> 16, of & 0xFFFF, lower >> 16, lower & 0xFFFF
    one = x_low * f_high + ((x_low * f_low) >> 16)
    two = x_high * f_low + (one & 0xFFFF)
    return of * upper + x_high * f_high + (one >> 16) + (two >> 16), of * lower


def _remainders(x: Words, divisors: tuple[int, ...]) -> jax.Array:
    """Remainders int32 [T, divisors] of [T] numbers of 64 bits, long division by as many bits as there is room for."""
    upper, lower = (part[:, None] for part in x)
    by = jnp.asarray(divisors, jnp.uint32)
    step = 32 - max(divisors).bit_length()
    rest = jnp.zeros((len(upper), len(divisors)), jnp.uint32)
    for end in range(64, 0, -step):
        start, size = max(end - step, 0), min(step, end)
        part = upper >> (start - 32) if start >= 32 else lower >> start
        if start < 32 < end:
            part |= upper << (32 - start)
        rest = ((rest << size) | (part & ((1 << size) - 1))) % by
    return rest.astype(jnp.int32)
