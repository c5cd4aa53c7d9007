import jax
import numpy as np

from jaxllm.executor.packed_layout import PackedLayout


def test_fields_survive_the_packed_transfer() -> None:
    fields = {
        "ids": ((3,), np.int32),
        "count": ((), np.int32),
        "floats": ((2, 2), np.float32),
        "last": ((1,), np.int32),
    }
    layout = PackedLayout(fields)
    assert layout.size == 3 + 1 + 4 + 1
    packed, views = layout.host_buffer()
    views["ids"][:] = [1, -2, 2**31 - 1]
    views["count"][...] = 7
    views["floats"][:] = [[0.5, -np.inf], [1e-40, 3.25]]
    views["last"][:] = 9
    unpacked = jax.jit(layout.unpack)(packed)
    for name, view in views.items():
        np.testing.assert_array_equal(unpacked[name], view)
        assert unpacked[name].dtype == view.dtype


def test_buffers_are_not_shared_between_steps() -> None:
    layout = PackedLayout({"ids": ((4,), np.int32)})
    first, views = layout.host_buffer()
    views["ids"][:] = 5
    second, _ = layout.host_buffer()
    assert first.tolist() == [5] * 4
    assert second.tolist() == [0] * 4
