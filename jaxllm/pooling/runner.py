"""Runs steps of a pooling engine: packs texts, calls the executable of their bucket, reads the results."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np

from jaxllm.engine.features.faults import is_of_one_request
from jaxllm.executor.compile.buckets import Bucket, Buckets
from jaxllm.executor.compile.compilations import CompilationWatch
from jaxllm.executor.compile.executables import Executables
from jaxllm.executor.compile.first_run import first_run
from jaxllm.executor.program_table import EMPTY_ADAPTERS, ENCODE, ROW_SQUARES, SCALE_ADAPTER, SET_ADAPTER
from jaxllm.media.grid_positions import grid_offsets
from jaxllm.pooling.params import PoolingParams
from jaxllm.pooling.request import PoolingRequest
from jaxllm.pooling.step import FINISH_ROWS, PoolingShape

EMPTY_MEDIA = "empty_media"
"""The program that makes the pool of images' rows."""


@dataclass(frozen=True)
class DispatchedTexts:
    """A step that is on its way: device arrays that `PoolingRunner.collect` waits for."""

    requests: list[PoolingRequest]
    bucket: Bucket
    results: jax.Array
    hidden: jax.Array

    @property
    def num_tokens(self) -> int:
        """Tokens of all texts."""
        return sum(len(request.prompt_token_ids) for request in self.requests)


class PoolingRunner:
    """Owns the parameters and calls the executables."""

    def __init__(
        self,
        *,
        parameters: tuple[jax.Array, ...],
        executables: Executables,
        buckets: Buckets,
        shape: PoolingShape,
        hidden_size: int,
        size: int,
        watch: CompilationWatch,
        grid_merge: int | None = None,
    ) -> None:
        """`grid_merge` patches each way are a row, where rows of images are rotated by their places in a grid."""
        self.watch = watch
        self._parameters = parameters
        self._adapters: Any = ()
        self._row_squares: Any = ()
        self._media: tuple[jax.Array, ...] = ()
        self._grid_merge = grid_merge
        self._executables = executables
        self._buckets = buckets
        self._shape = shape
        self._hidden_size, self._size = hidden_size, size
        self._layouts = {bucket: shape.layout(bucket) for bucket in buckets.all}

    @property
    def num_shapes(self) -> int:
        """Step shapes there are."""
        return len(self._buckets.all)

    def warm_up(self, buckets: Iterable[Bucket]) -> None:
        """Run an empty step of each bucket, so that everything that happens once has happened. Raises like `first_run`.

        They must be made, or be those that are made when they are met.
        """
        for bucket in buckets:
            first_run(self._executables, f"the first step of {bucket}", partial(self._run_empty, bucket))

    def _run_empty(self, bucket: Bucket) -> None:
        packed, _ = self._layouts[bucket].host_buffer()
        step = self._executables.get(bucket.name)
        jax.block_until_ready(step(self._parameters, self._adapters, self._media, packed))

    def empty_media(self) -> None:
        """Make the pool of images' rows, empty."""
        self._media = self._executables.get(EMPTY_MEDIA)()

    def encode(self, size: int, *inputs: np.ndarray) -> None:
        """Encode a crop of an image into the pool, for the steps dispatched from now on. Returns at once.

        `inputs` are those of `encoding`.
        """
        program: Any = self._executables.get(ENCODE.sized_name(size))
        with self.watch.watching("an image"):
            self._media = (program(self._parameters, *self._media, *inputs),)

    def empty_adapters(self) -> None:
        """Make the slots for adapters, empty."""
        self._adapters = self._executables.get(EMPTY_ADAPTERS.name)()

    def set_adapter(self, slot: int, stages: Sequence[Sequence[np.ndarray]]) -> None:
        """Bring an adapter to a slot, for the steps dispatched from now on: the arrays of the one stage there is."""
        (arrays,) = stages
        set_one: Any = self._executables.get(SET_ADAPTER.name)
        with self.watch.watching("an adapter"):
            self._adapters = set_one(self._adapters, np.int32(slot), *arrays)
        if self._shape.adapters is None or not self._shape.adapters.has_vectors:
            return
        measure: Any = self._executables.get(ROW_SQUARES.name)
        scale: Any = self._executables.get(SCALE_ADAPTER.name)
        with self.watch.watching("an adapter"):
            if not self._row_squares:
                self._row_squares = measure(self._parameters, self._adapters)
            self._adapters = scale(self._parameters, self._row_squares, self._adapters, np.int32(slot))

    def dispatch(self, requests: list[PoolingRequest]) -> DispatchedTexts:
        """Start a step. Returns at once; the device works while the host goes on."""
        bucket = self._buckets.fit(sum(len(request.prompt_token_ids) for request in requests))
        # Outside the watch: with `enforce_eager` a shape is compiled when it is first met, on purpose.
        executable = self._executables.get(bucket.name)
        with self.watch.watching(bucket):
            results, hidden = executable(self._parameters, self._adapters, self._media, self._pack(requests, bucket))
        results.copy_to_host_async()
        if not self._shape.settings.of_tokens and any(wants_tokens(request.params) for request in requests):
            hidden.copy_to_host_async()
        return DispatchedTexts(requests, bucket, results, hidden)

    def collect(self, step: DispatchedTexts) -> list[np.ndarray | BaseException]:
        """Wait for a step: float32 [O] for each text, or [length, O] where its tokens were asked for.

        An exception where the host code for a text has failed, and for no other.
        """
        results = np.asarray(step.results)
        of_rest = [wants_tokens(each.params) for each in step.requests] if not self._shape.settings.of_tokens else []
        hidden = np.asarray(step.hidden) if any(of_rest) else None
        first = 0
        found: list[np.ndarray | BaseException] = []
        for row, request in enumerate(step.requests):
            last = first + len(request.prompt_token_ids)
            try:
                found.append(self._result(request, row, results, None if hidden is None else hidden[first:last], first))
            except BaseException as error:
                if not is_of_one_request(error):
                    raise
                found.append(error)
            first = last
        return found

    def _result(
        self, request: PoolingRequest, row: int, results: np.ndarray, hidden: np.ndarray | None, first: int
    ) -> np.ndarray:
        """The request for one text, whose tokens' results are from `first` on. Its `hidden` states: [length, D].

        Copies: the whole of the step's results need not stay for the sake of one.
        """
        size, _ = self._wish(request)
        if not wants_tokens(request.params):
            return results[row, :size].copy()
        if hidden is not None:
            return self._asked(self._tokens(hidden, request), request)
        last = first + len(request.prompt_token_ids)
        return self._asked(results[first:last, :size].copy(), request)

    def close(self) -> None:
        """Free the device memory; the runner cannot be used any more."""
        self.watch.close()
        for leaf in (*self._parameters, *self._adapters, *self._media):
            leaf.delete()
        self._executables.close()

    def _pack(self, requests: Sequence[PoolingRequest], bucket: Bucket) -> np.ndarray:
        packed, views = self._layouts[bucket].host_buffer()
        lengths = [len(request.prompt_token_ids) for request in requests]
        ends = np.cumsum(lengths)
        total, rows = int(ends[-1]), len(requests)
        np.concatenate([request.prompt_token_ids for request in requests], out=views["token_ids"][:total])
        views["rows"][:total] = np.repeat(np.arange(rows, dtype=np.int32), lengths)
        views["starts"][1 : rows + 1] = ends
        views["starts"][rows + 1 :] = total
        views["num_tokens"][...] = total
        views["num_rows"][...] = rows
        for row, request in enumerate(requests):
            if request.second_text is not None:
                views["token_types"][ends[row] - lengths[row] + request.second_text : ends[row]] = 1
            views["sizes"][row], views["flags"][row] = self._wish(request)
        if self._shape.adapters is not None:
            views["adapter_slots"][:rows] = [request.adapter_slot for request in requests]
            views["adapter_slots"][rows:] = -1
        if self._shape.sees_images:
            for first, request in zip((ends - lengths).tolist(), requests, strict=True):
                self._pack_media(request, {name: views[name][..., first:] for name in self._shape.media_fields})
        return packed

    def _pack_media(self, request: PoolingRequest, fields: Mapping[str, np.ndarray]) -> None:
        """Fill in what a step must know of the images of a text; `fields` begin with its first token."""
        media, length, visible = request.media, len(request.prompt_token_ids), fields.get("visible_until")
        if visible is not None:
            visible[:length] = np.arange(1, length + 1)
            for begin, end in () if media is None else media.spans.tolist():
                visible[begin:end] = end
        if media is None:
            return
        fields["media_rows"][media.places] = request.media_rows
        if "rotary_offsets" in fields:
            assert self._grid_merge is not None
            offsets, shift = grid_offsets(media, self._grid_merge)
            fields["rotary_offsets"][:, : media.end] = offsets
            fields["rotary_offsets"][:, media.end : length] = shift

    def _wish(self, request: PoolingRequest) -> tuple[int, bool]:
        """Numbers per result, and whether it is normalised or activated."""
        settings, params = self._shape.settings, request.params
        if settings.num_labels is not None:
            wanted = params.activates
            return request.num_labels or settings.num_labels, settings.use_activation if wanted is None else wanted
        if params.task == "token_classify":
            return 1, True
        normalize = settings.normalize if params.normalize is None else params.normalize
        size = self._size
        if params.task == "token_embed":
            size = settings.token_dense[-1].out_size if settings.token_dense else self._hidden_size
        return params.dimensions or size, normalize

    def _asked(self, data: np.ndarray, request: PoolingRequest) -> np.ndarray:
        """The requested tokens and classes of the results [length, O] of all tokens."""
        settings, params, token_ids = self._shape.settings, request.params, request.prompt_token_ids
        if params.returned_token_ids:
            data = data[:, params.returned_token_ids]
        step = settings.step_token_id if params.step_tag_id is None else params.step_tag_id
        if step is not None and params.task == "token_classify":
            return data[token_ids == step]
        left_out = settings.left_out.get(str(params.task), (None, None))
        return data[int(token_ids[0] == left_out[0]) : len(data) - int(token_ids[-1] == left_out[1])]

    def _tokens(self, hidden: np.ndarray, request: PoolingRequest) -> np.ndarray:
        """Results of every token, from hidden states [length, D]."""
        size, flag = self._wish(request)
        each = [np.full(FINISH_ROWS, value, np.int32) for value in (size, flag, request.adapter_slot)]
        assert request.params.task is not None
        executable: Any = self._executables.get(request.params.task)
        parts = []
        for first in range(0, len(hidden), FINISH_ROWS):
            block = np.zeros((FINISH_ROWS, self._hidden_size), np.float32)
            part = hidden[first : first + FINISH_ROWS]
            block[: len(part)] = part
            found = executable(self._parameters, self._adapters, block, *each)
            parts.append(np.asarray(found)[: len(part), :size])
        return np.concatenate(parts)


def wants_tokens(params: PoolingParams) -> bool:
    """Whether a result for every token was asked for."""
    return params.task in ("token_embed", "token_classify")
