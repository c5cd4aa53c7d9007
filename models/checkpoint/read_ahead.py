"""Reading of tensors before they are asked for, so that the disk and the copy to the device work at the same time.

A fast disk, and even more a file system on the network, gives one thread only a part of what it gives several.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from jaxllm.models.checkpoint.safetensors_file import Tensor, aligned_empty

if TYPE_CHECKING:
    from jaxllm.models.checkpoint.host_parameter import Entries
    from jaxllm.models.quantization.format import MatrixTensor
    from jaxllm.pallas_kernels.linear.weight_type import QuantizedMatrix

    Wanted = tuple[Tensor | MatrixTensor, np.dtype[Any], npt.NDArray[np.bool_] | Callable[[], Entries] | None]
    """A tensor, the type of its values, and which of its rows are wanted; None: all. One of few bits has its own.

    In place of rows, what gives the memory that all rows are packed into as they are read, called when that begins.
    """
    Values: TypeAlias = np.ndarray[Any, Any] | QuantizedMatrix | Entries

T = TypeVar("T")
Job = tuple[int, Callable[[ThreadPoolExecutor], Callable[[], T]]]
"""Bytes to be read, and what has them read and returns what waits for the result."""

THREADS = 4
AHEAD_BYTES = 128 * 2**20
"""Bytes of tensors that nobody has taken yet. One tensor is read ahead however large it is."""
PIECE_BYTES = 16 * 2**20
"""Bytes that a thread reads at a time, so that all of them read a large tensor."""
BUFFER_BYTES = 2**19
"""Bytes that are read before they are packed: they stay in a processor's second-level cache."""


def read_ahead(wanted: "Iterable[Wanted]") -> "Generator[tuple[Tensor | MatrixTensor, Values], None, None]":
    """Each tensor with its values in the type asked for, in the order given. Rows not wanted have any values.

    Where a tensor is to be packed, the entries that it was packed into take the place of values.

    While one is in use the next ones are read, up to `AHEAD_BYTES`. Raises `ModelError` as `Tensor.read` does.
    """
    yield from in_order(_job(*each) for each in wanted)


def in_order(jobs: "Iterable[Job[T]]") -> Generator[T, None, None]:
    """The results of jobs, in the order given; while one is in use the next ones are read, up to `AHEAD_BYTES`."""
    with ThreadPoolExecutor(THREADS, thread_name_prefix="weights") as pool:
        ahead = _Ahead(pool, jobs)
        try:
            while ahead.fill():
                yield ahead.take()
        finally:
            pool.shutdown(cancel_futures=True)


class _Ahead(Generic[T]):
    """The jobs that are begun, and whose results nobody has taken."""

    def __init__(self, pool: ThreadPoolExecutor, jobs: "Iterable[Job[T]]") -> None:
        self._pool = pool
        self._jobs = deque(jobs)
        self._begun = deque[tuple[int, Callable[[], T]]]()
        self._bytes = 0

    def fill(self) -> bool:
        """Begin what there is room for; False when nothing is left."""
        while self._jobs:
            size, begin = self._jobs[0]
            if self._begun and self._bytes + size > AHEAD_BYTES:
                break
            self._jobs.popleft()
            self._begun.append((size, begin(self._pool)))
            self._bytes += size
        return bool(self._begun)

    def take(self) -> T:
        """The first result, once it is there."""
        size, finish = self._begun.popleft()
        result = finish()
        self._bytes -= size
        # The next ones are read while this one is in use.
        self.fill()
        return result


def _job(
    tensor: "Tensor | MatrixTensor",
    dtype: np.dtype[Any],
    rows: "npt.NDArray[np.bool_] | Callable[[], Entries] | None",
) -> "Job[tuple[Tensor | MatrixTensor, Values]]":
    """Reads a tensor."""
    size = tensor.size * dtype.itemsize if isinstance(tensor, Tensor) else tensor.num_bytes
    return size, partial(_begin, tensor, dtype, rows)


def _begin(
    tensor: "Tensor | MatrixTensor",
    dtype: np.dtype[Any],
    rows: "npt.NDArray[np.bool_] | Callable[[], Entries] | None",
    pool: ThreadPoolExecutor,
) -> "Callable[[], tuple[Tensor | MatrixTensor, Values]]":
    """Have it read, and return what waits for it."""
    if not isinstance(tensor, Tensor):
        reading = pool.submit(tensor.read)
        return lambda: (tensor, reading.result())
    if callable(rows):
        entries = rows()
        pieces = _pack(pool, tensor, dtype, entries)
    else:
        values = aligned_empty(tensor.stored_shape, dtype)
        pieces = _read(pool, tensor, values.reshape(-1), rows)

    def finish() -> "tuple[Tensor | MatrixTensor, Values]":
        for piece in pieces:
            piece.result()
        return tensor, entries if callable(rows) else tensor.present(values)

    return finish


def _read(
    pool: ThreadPoolExecutor, tensor: Tensor, flat: np.ndarray, rows: npt.NDArray[np.bool_] | None
) -> list[Future[None]]:
    step = PIECE_BYTES // flat.itemsize
    return [
        pool.submit(tensor.read_into, flat[begin : min(begin + step, end)], begin)
        for first, end in ([(0, flat.size)] if rows is None else runs(rows, flat.size // len(rows)))
        for begin in range(first, end, step)
    ]


def _pack(pool: ThreadPoolExecutor, tensor: Tensor, dtype: np.dtype[Any], entries: "Entries") -> list[Future[None]]:
    count, width = tensor.shape
    unit = entries.layout.rows_per_entry
    step = max(1, PIECE_BYTES // (width * dtype.itemsize * unit)) * unit
    return [
        pool.submit(_pack_rows, tensor, dtype, entries, range(first, min(first + step, count)))
        for first in range(0, count, step)
    ]


def _pack_rows(tensor: Tensor, dtype: np.dtype[Any], entries: "Entries", rows: range) -> None:
    """Read rows of a tensor and pack them, as many at a time as stay in a processor's cache.

    Threads write to memory for the first time here, which takes the system longer than reading where a hypervisor has
    yet to provide it.
    """
    width, unit = tensor.shape[1], entries.layout.rows_per_entry
    step = max(1, BUFFER_BYTES // (width * dtype.itemsize * unit)) * unit
    buffer = np.empty((min(step, len(rows)), width), dtype)
    for first in range(rows.start, rows.stop, step):
        part = buffer[: rows.stop - first]
        tensor.read_into(part.reshape(-1), first * width)
        entries.pack(first, part)


def runs(rows: npt.NDArray[np.bool_], size: int) -> list[tuple[int, int]]:
    """Where rows that are wanted begin and end, counted in values; a row has `size` of them."""
    edges = np.flatnonzero(np.diff(rows, prepend=False, append=False)) * size
    return [(int(begin), int(end)) for begin, end in edges.reshape(-1, 2)]
