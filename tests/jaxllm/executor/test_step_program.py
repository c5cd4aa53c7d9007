"""The table of pages on the device against one kept on the host."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxllm.executor.compile.buckets import Bucket
from jaxllm.executor.state_programs import copy_places, set_pages
from jaxllm.executor.step_inputs import StepShape
from jaxllm.executor.step_program import _update_pages

SLOTS, WIDTH, PAGE_SIZE, ROWS = 5, 6, 4, 4

SHAPE = StepShape(table_width=WIDTH, page_size=PAGE_SIZE, max_logprobs=1, sample_rows=1)
update_pages = jax.jit(partial(_update_pages, shape=SHAPE))
set_pages_jit = jax.jit(set_pages)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_the_device_knows_the_pages_that_rows_grow_into(data: st.DataObject) -> None:
    on_host = np.zeros((SLOTS, WIDTH), np.int32)
    on_device = jnp.zeros((SLOTS, WIDTH), jnp.int32)
    lengths = np.zeros(SLOTS, np.int64)
    next_page = 1
    for _ in range(data.draw(st.integers(1, 6))):
        slots = data.draw(st.permutations(range(SLOTS)))[: data.draw(st.integers(0, ROWS))]
        admitted = [slot for slot in slots if lengths[slot] in (0, WIDTH * PAGE_SIZE) or data.draw(st.booleans())]
        for slot in admitted:
            lengths[slot] = data.draw(st.integers(1, WIDTH * PAGE_SIZE))
            held = -(-lengths[slot] // PAGE_SIZE)
            on_host[slot] = [*range(next_page, next_page + held), *[0] * (WIDTH - held)]
            next_page += held
        padded = np.full(ROWS, -1, np.int32)
        padded[: len(admitted)] = admitted
        rows = np.zeros((ROWS, WIDTH), np.int32)
        rows[: len(admitted)] = on_host[admitted]
        on_device = set_pages_jit(on_device, padded, rows)
        for slot in set(slots) - set(admitted):
            if lengths[slot] % PAGE_SIZE == 0:
                on_host[slot, lengths[slot] // PAGE_SIZE] = next_page
                next_page += 1
            lengths[slot] += 1
        inputs = {name: np.zeros(ROWS, np.int32) for name in ("slots", "kv_lens", "last_pages")}
        inputs["slots"][: len(slots)] = slots
        inputs["kv_lens"][: len(slots)] = lengths[slots]
        inputs["last_pages"][: len(slots)] = on_host[slots, (lengths[slots] - 1) // PAGE_SIZE]
        on_device, of_rows = update_pages(on_device, inputs)
        np.testing.assert_array_equal(on_device, on_host)
        np.testing.assert_array_equal(of_rows[: len(slots)], on_host[slots])
        assert not np.any(of_rows[len(slots) :]), "padding has no pages"


def test_a_packed_step_does_not_grow_with_the_context() -> None:
    sizes = {
        width: StepShape(table_width=width, page_size=16, max_logprobs=20, sample_rows=16).layout(Bucket(256, 256)).size
        for width in (8, 8192)
    }
    assert sizes[8] == sizes[8192]


def test_copied_pages_need_no_room_for_the_cache() -> None:
    cache = np.arange(2 * 6 * 4 * 2 * 8, dtype=np.float32).reshape(2, 6, 4, 2, 8)
    pages = np.array([[1, 3, 0], [4, 2, 0]], np.int32)
    copy = jax.jit(copy_places, donate_argnums=0).lower(jax.numpy.asarray(cache), pages, np.int32(2)).compile()
    memory = copy.memory_analysis()
    assert memory is not None
    assert memory.alias_size_in_bytes >= cache.nbytes
    assert memory.temp_size_in_bytes < cache.nbytes / 2
    copied = np.asarray(copy(jax.numpy.asarray(cache), pages, np.int32(2)))
    expected = cache.copy()
    expected[:, [4, 2]] = cache[:, [1, 3]]
    assert np.array_equal(copied, expected)
