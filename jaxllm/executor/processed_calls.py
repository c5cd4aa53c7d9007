"""Calls that bring logits of rows to the host, and choose tokens from logits that processors have changed."""

from collections.abc import Iterator

import jax
import numpy as np
import numpy.typing as npt

from jaxllm.executor.compile.compilations import CompilationWatch
from jaxllm.executor.constrained_calls import pack_constrained
from jaxllm.executor.device_calls import DeviceCalls
from jaxllm.executor.packed_layout import PackedLayout
from jaxllm.executor.program_table import ROW_LOGITS, SAMPLE_FROM_HOST, SAMPLE_PROCESSED
from jaxllm.executor.sampler.compiled_processors import CompiledProcessors
from jaxllm.executor.sampler.constrained import ConstrainedRows
from jaxllm.executor.sampler.processed import processed_layout
from jaxllm.executor.step_packer import StepPacker

Int32Array = npt.NDArray[np.int32]
Float32Array = npt.NDArray[np.float32]


class ProcessedCalls:
    """The calls for the steps of one runner, whose engine has such processors."""

    def __init__(
        self,
        calls: DeviceCalls,
        packer: StepPacker,
        watch: CompilationWatch,
        shards: int,
        compiled: CompiledProcessors,
    ) -> None:
        self._calls, self._packer, self._watch = calls, packer, watch
        sampling, numbers = calls.state.sampling, compiled.num_numbers
        self._vocab_size = compiled.vocab_size
        self._width = sampling.bias.shape[1]
        self._layouts = {
            from_host: processed_layout(sampling, shards, numbers, from_host=from_host) for from_host in (False, True)
        }

    def logits(self, constrained: ConstrainedRows, which: Int32Array) -> Float32Array:
        """Logits with bias and penalties of rows that the last step left out: float32 [n, V], for the caller."""
        layout, found = self._layouts[True], np.empty((len(which), self._vocab_size), np.float32)
        calls = []
        with self._watch.watching("logits of rows"):
            for parts, places in self._parts(layout, constrained, which):
                own = [pack_constrained(layout, self._packer, constrained, which[part])[0] for part in parts]
                calls.append((np.concatenate(parts), places, self._calls.call(ROW_LOGITS, np.concatenate(own))))
        for rows, places, logits in calls:
            found[rows] = np.asarray(self._calls.fetch(logits))[places, : self._vocab_size]
        return found

    def choose(
        self,
        constrained: ConstrainedRows,
        which: Int32Array,
        masks: Int32Array,
        uses: Int32Array,
        numbers: Int32Array,
        logits: Float32Array | None,
    ) -> None:
        """Choose the tokens of such rows, int32 [n] of `constrained`, of their `logits` where these were changed.

        All else has a row for each: masks [n, W], and `Processing.compiled`.
        """
        layout = self._layouts[logits is not None]
        with self._watch.watching("processed rows"):
            for parts, places in self._parts(layout, constrained, which):
                own = []
                for part in parts:
                    packed, views = pack_constrained(layout, self._packer, constrained, which[part])
                    views["masks"][: len(part)] = masks[part]
                    views["uses"][: len(part)] = uses[part]
                    views["numbers"][: len(part)] = numbers[part]
                    own.append(packed)
                rows, packed = np.concatenate(parts), np.concatenate(own)
                if logits is None:
                    sampled = self._calls.call(SAMPLE_PROCESSED, packed)
                else:
                    given = np.full((len(parts) * self._at_once(layout), self._width), -np.inf, np.float32)
                    given[places, : self._vocab_size] = logits[rows]
                    sampled = self._calls.call(SAMPLE_FROM_HOST, packed, given)
                constrained.chosen.append((which[rows], places, sampled))
                for leaf in jax.tree.leaves(
                    (sampled.token_ids, sampled.is_empty, sampled.logprobs if constrained.wants_logprobs else None)
                ):
                    leaf.copy_to_host_async()

    def _parts(
        self, layout: PackedLayout, constrained: ConstrainedRows, which: Int32Array
    ) -> Iterator[tuple[list[Int32Array], Int32Array]]:
        """Which of `which` a call takes, by shard, and their places in its result."""
        at_once = self._at_once(layout)
        for parts in self._packer.by_shard(constrained.hidden[which], at_once):
            yield parts, np.concatenate([shard * at_once + np.arange(len(part)) for shard, part in enumerate(parts)])

    def _at_once(self, layout: PackedLayout) -> int:
        return len(layout.host_buffer()[1]["hidden_rows"])
