"""Reading of tensors before they are asked for, so that the disk and the copy to the device work at the same time.

A fast disk, and even more a file system on the network, gives one thread only a part of what it gives several.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from jaxllm.models.checkpoint.safetensors_file import Tensor, aligned_empty

if TYPE_CHECKING:
    from jaxllm.models.quantization.format import MatrixTensor
    from jaxllm.pallas_kernels.linear.weight_type import QuantizedMatrix

    Wanted = tuple[Tensor | MatrixTensor, np.dtype[Any], npt.NDArray[np.bool_] | None]
    """A tensor, the type of its values, and which of its rows are wanted; None: all. One of few bits has its own."""
    Values = np.ndarray | QuantizedMatrix

THREADS = 4
AHEAD_BYTES = 128 * 2**20
"""Of tensors that nobody has taken yet. One tensor is read ahead however large it is."""
PIECE_BYTES = 16 * 2**20
"""What a thread reads at a time, so that all of them read a large tensor."""


def read_ahead(wanted: "Iterable[Wanted]") -> "Generator[tuple[Tensor | MatrixTensor, Values], None, None]":
    """Each tensor with its values in the type asked for, in the order given. Rows not wanted have any values.

    While one is in use the next ones are read, up to `AHEAD_BYTES`. Raises `ModelError` as `Tensor.read` does.
    """
    with ThreadPoolExecutor(THREADS, thread_name_prefix="weights") as pool:
        ahead = _Ahead(pool, wanted)
        try:
            while ahead.fill():
                yield ahead.take()
        finally:
            pool.shutdown(cancel_futures=True)


class _Ahead:
    """The tensors that are read or being read, and that nobody has taken."""

    def __init__(self, pool: ThreadPoolExecutor, wanted: "Iterable[Wanted]") -> None:
        self._pool = pool
        self._wanted = deque(wanted)
        self._begun = deque["tuple[Tensor | MatrixTensor, int, Callable[[], Values]]"]()
        self._bytes = 0

    def fill(self) -> bool:
        """Begin to read what there is room for; False when nothing is left."""
        while self._wanted:
            tensor, dtype, rows = self._wanted[0]
            size = tensor.size * dtype.itemsize if isinstance(tensor, Tensor) else tensor.num_bytes
            if self._begun and self._bytes + size > AHEAD_BYTES:
                break
            self._wanted.popleft()
            self._begun.append((tensor, size, self._begin(tensor, dtype, rows)))
            self._bytes += size
        return bool(self._begun)

    def take(self) -> "tuple[Tensor | MatrixTensor, Values]":
        """The first tensor, once it is read."""
        tensor, size, finish = self._begun.popleft()
        values = finish()
        self._bytes -= size
        # The next ones are read while this one is in use.
        self.fill()
        return tensor, values

    def _begin(
        self, tensor: "Tensor | MatrixTensor", dtype: np.dtype[Any], rows: npt.NDArray[np.bool_] | None
    ) -> "Callable[[], Values]":
        """Have it read, and return what waits for it."""
        if not isinstance(tensor, Tensor):
            return self._pool.submit(tensor.read).result
        values = aligned_empty(tensor.stored_shape, dtype)
        pieces = self._read(tensor, values.reshape(-1), rows)

        def finish() -> np.ndarray:
            for piece in pieces:
                piece.result()
            return tensor.present(values)

        return finish

    def _read(self, tensor: Tensor, flat: np.ndarray, rows: npt.NDArray[np.bool_] | None) -> list[Future[None]]:
        step = PIECE_BYTES // flat.itemsize
        return [
            self._pool.submit(tensor.read_into, flat[begin : min(begin + step, end)], begin)
            for first, end in ([(0, flat.size)] if rows is None else runs(rows, flat.size // len(rows)))
            for begin in range(first, end, step)
        ]


def runs(rows: npt.NDArray[np.bool_], size: int) -> list[tuple[int, int]]:
    """Where rows that are wanted begin and end, counted in values; a row has `size` of them."""
    edges = np.flatnonzero(np.diff(rows, prepend=False, append=False)) * size
    return [(int(begin), int(end)) for begin, end in edges.reshape(-1, 2)]
