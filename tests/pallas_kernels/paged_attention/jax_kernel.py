"""JAX's own ragged paged attention kernel in Pallas's TPU interpreter: a second oracle, which we did not write.

The interpreter of JAX 0.10 stops at two things that the kernel does; both are done in other words here, and nothing of
its arithmetic, its DMAs or its order is changed:

- it reads keys and values through `ref.reshape` and `ref.bitcast` ("'ReshapeTransform' object has no attribute
  'indices'"), so that the whole buffer is loaded first, and the array is cut up in the same way;
- it stores parts of a buffer under a mask ("Out-of-bounds masked swap"; the interpreter compares the part with the
  whole buffer), so that a masked store becomes a load, a choice and a store.

JAX's older interpreter (`interpret=True`) is no way out: it fails on the kernel's stores at constant places
("'TypedInt' object has no attribute 'shape'").
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax._src.pallas.mosaic.interpret import interpret_pallas_call
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas.ops.tpu.ragged_paged_attention import kernel as peer

from jaxllm.pallas_kernels.paged_attention.cases import Case, Inputs

PAGES, QUERIES = 2, 16
"""Its block sizes: small, so that small cases have several blocks."""


def allows(case: Case) -> bool:
    """Whether JAX's kernel computes this case.

    It has no sinks and no ALiBi; its window and scales are numbers (a window of 0 is an error), both scales or none;
    its head is a whole number of 128 lanes; its heads fill tiles; and it expects some token in every row.
    """
    words = 2 * case.num_kv_heads * case.cache_dtype.itemsize / 4
    return (
        not (case.sinks or case.alibi or case.window == 0)
        and (case.k_scale is None) == (case.v_scale is None)
        and case.head_size % 128 == 0
        and (words in (1, 2, 4) or words % 8 == 0)
        and bool(case.rows)
        and all(new for new, _ in case.rows)
    )


def attend(inputs: Inputs, pages: jax.Array, monkeypatch: pytest.MonkeyPatch) -> jax.Array:
    """Result [T, N, H], the rows of padding unspecified; `pages` [P, C, 2K, H] hold the new keys and values already.

    Fails where the interpreter finds a race.
    """
    case, batch = inputs.case, inputs.batch
    with monkeypatch.context() as patch:
        wait: Callable[[Any], Any] = peer.MultiPageAsyncCopyDescriptor.wait
        patch.setattr(peer.MultiPageAsyncCopyDescriptor, "wait", lambda copies: _Loaded(wait(copies)[...]))
        patch.setattr(pltpu, "store", _store)
        with pltpu.force_tpu_interpret_mode(pltpu.InterpretParams(detect_races=True, uninitialized_memory="nan")):
            out: jax.Array = peer.ragged_paged_attention(
                inputs.q,
                pages,
                batch.kv_lens,
                batch.page_table,
                batch.query_start,
                jnp.array([len(case.rows)], jnp.int32),
                sm_scale=case.scale,
                sliding_window=case.window,
                soft_cap=case.soft_cap,
                k_scale=case.k_scale,
                v_scale=case.v_scale,
                num_kv_pages_per_block=PAGES,
                num_queries_per_block=QUERIES,
            )
            jax.block_until_ready(out)
    assert interpret_pallas_call.races is not None
    assert not interpret_pallas_call.races.races_found
    return out


def _store(ref: Any, value: jax.Array, *, mask: jax.Array) -> None:
    ref[...] = jnp.where(mask, value, ref[...])


class _Loaded:
    """The buffer of keys and values, loaded; with those methods of a reference that the kernel calls."""

    def __init__(self, value: jax.Array) -> None:
        self.value = value

    @property
    def dtype(self) -> jnp.dtype:
        return self.value.dtype

    def reshape(self, *shape: int) -> "_Loaded":
        return _Loaded(self.value.reshape(shape))

    def bitcast(self, dtype: Any) -> "_Loaded":
        """Rows as words of 32 bits, the first of them in the lowest bits."""
        rows, lanes = self.value.shape
        per_word = 4 // self.dtype.itemsize
        words = self.value.reshape(rows // per_word, per_word, lanes).swapaxes(1, 2)
        return _Loaded(jax.lax.bitcast_convert_type(words, dtype))

    def __getitem__(self, index: Any) -> jax.Array:
        return self.value[index]
