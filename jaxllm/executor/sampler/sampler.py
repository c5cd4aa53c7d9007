"""From logits to tokens, inside the step's executable: the order of operations, and what is skipped.

The log-probabilities are those of the model's own logits, unless `logprobs_mode` says otherwise. Then, as in vLLM: bias
and forbidden tokens, penalties; greedy rows take the largest; the others divide by the temperature, drop what min-p,
top-k and top-p cut off, and draw (`pallas_kernels/sampling`).
What no row of the batch needs is skipped by conditionals over the whole batch, so no value of any parameter causes a
compilation.
"""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.tree_util import register_dataclass

from jaxllm.executor.sampler.logprobs import Logprobs, gather_logprobs, no_logprobs
from jaxllm.executor.sampler.logprobs_mode import RAW, drawn_logits, is_normalized, is_processed
from jaxllm.executor.sampler.noise import uniforms
from jaxllm.executor.sampler.penalties import process
from jaxllm.executor.sampler.rows import SamplingRows, SamplingState
from jaxllm.pallas_kernels.sampling import WHOLE, Choice, Vocabulary, choose_tokens


@register_dataclass
@dataclass(frozen=True)
class SampledRows:
    """The tokens of a step, int32 [R], and their log-probabilities, which are zeros when no row wants any.

    `is_empty` bool [R]: processors have left no token to choose; None where there are none. `drafts` int32 [R, K] are
    guesses at the tokens that follow; None where the device makes none.
    """

    token_ids: Array
    logprobs: Logprobs
    is_empty: Array | None = None
    drafts: Array | None = None


def sample(
    logits: Array,
    rows: SamplingRows,
    state: SamplingState,
    masks: Array | None = None,
    num_rows: Array | None = None,
    altered: Array | None = None,
    *,
    max_logprobs: int,
    vocabulary: Vocabulary = WHOLE,
    implementation: str = "xla",
    logprobs_mode: str = RAW,
) -> tuple[SampledRows, SamplingState]:
    """Choose one token per row of `logits` float32 [R, V], and count it in `state` where penalties will read it.

    A row's token depends on its own logits, parameters and state only. `max_logprobs` is static: the number of most
    likely tokens whose log-probabilities are returned, at most V. `masks` int32 [R, W] has a bit for each token of the
    whole vocabulary, 1 where it is allowed (`jaxllm.structured.backend.Mask`); where nothing is left of a row, its
    token is arbitrary. Rows from `num_rows` (int32 []) on need not be computed. `altered` [R, V] are the logits with
    bias and penalties as logits processors have changed them: tokens are chosen by these. With a `vocabulary` that is
    split, `logits` and `state` are one part, and the result is the same on all devices. `implementation` (static) is
    that of `choose_tokens`, and `logprobs_mode` (static) says which numbers `logprobs` are.
    """
    choice = _choice(rows)
    is_allowed = None if masks is None else allowed_tokens(masks, logits.shape[1], vocabulary)
    if implementation == "tpu":
        # Here, so that other machines do not load its compiler.
        from jaxllm.pallas_kernels.sampling.tpu.sampling import tpu_choose_tokens

        changed, is_changed = _changed(logits, rows, state, is_allowed, altered, vocabulary)
        token_ids = tpu_choose_tokens(logits, choice, vocabulary, changed=(changed, is_changed), num_rows=num_rows)
        processed = jnp.where(is_changed, changed, logits) if is_processed(logprobs_mode) else logits
    else:
        with jax.named_scope("process"):
            processed = process(logits, rows, state, lambda: logits, vocabulary) if altered is None else altered
        processed = processed if is_allowed is None else jnp.where(is_allowed, processed, -jnp.inf)
        token_ids = choose_tokens(processed, choice, vocabulary, implementation=implementation)
    with jax.named_scope("logprobs"):
        logprobs = lax.cond(
            rows.any_logprobs,
            lambda: gather_logprobs(
                drawn_logits(processed, choice, vocabulary) if is_processed(logprobs_mode) else logits,
                token_ids,
                max_logprobs,
                vocabulary,
                normalized=is_normalized(logprobs_mode),
            ),
            lambda: no_logprobs(logits.shape[0], max_logprobs),
        )
    return SampledRows(token_ids, logprobs), _counted(token_ids, rows, state, vocabulary)


def _choice(rows: SamplingRows) -> Choice:
    """The rows' parameters; rows that do not count ask for nothing that takes time."""
    temperature = jnp.where(rows.valid, rows.temperature, 0.0)
    return Choice(temperature, rows.top_k, rows.top_p, rows.min_p, uniforms(rows.seed, rows.step))


def _changed(
    logits: Array,
    rows: SamplingRows,
    state: SamplingState,
    is_allowed: Array | None,
    altered: Array | None,
    vocabulary: Vocabulary,
) -> tuple[Array, Array]:
    """Logits after bias, penalties and masks, and whether that changed any: if not, they are not even there."""
    if altered is not None:
        return altered if is_allowed is None else jnp.where(is_allowed, altered, -jnp.inf), jnp.bool_(True)
    is_changed = rows.any_bias | rows.any_penalty
    with jax.named_scope("process"):
        changed = process(logits, rows, state, lambda: lax.empty(logits.shape, logits.dtype), vocabulary)
    if is_allowed is None:
        return changed, is_changed
    return jnp.where(is_allowed, jnp.where(is_changed, changed, logits), -jnp.inf), jnp.bool_(True)


def _counted(token_ids: Array, rows: SamplingRows, state: SamplingState, vocabulary: Vocabulary) -> SamplingState:
    """The state with the tokens, where a row has penalties, which alone read them."""
    place = vocabulary.place(token_ids, state.seen.shape[1])

    counted = rows.valid if rows.is_counted is None else rows.valid & rows.is_counted

    def count(_: Array, seen: Array) -> Array:
        return seen.at[rows.slot, place].add(counted.astype(jnp.int32), mode="drop")

    # A loop of no or one trip changes the donated array in place, where a conditional would copy it.
    return replace(state, seen=lax.fori_loop(0, rows.any_penalty.astype(jnp.int32), count, state.seen))


def allowed_tokens(masks: Array, size: int, vocabulary: Vocabulary) -> Array:
    """The bits of this part of the vocabulary, which has `size` tokens and begins at a word: bool [R, size]."""
    words = lax.dynamic_slice_in_dim(masks, vocabulary.start(size) // 32, -(-size // 32), axis=1)
    bits = (words[:, :, None] >> jnp.arange(32, dtype=jnp.int32)) & 1
    return bits.reshape(masks.shape[0], -1)[:, :size] != 0
