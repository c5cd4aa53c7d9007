"""The weights of an engine, where they are (on the devices, on the host, or nowhere), and how others replace them."""

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxllm.config.progress import Progress, silent
from jaxllm.errors import RequestError
from jaxllm.executor.device_calls import DeviceCalls
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.executor.weights.host_copy import HostCopy, bring_back, offload
from jaxllm.executor.weights.load import load_drafter, open_engine_weights
from jaxllm.executor.weights.sharded.load import SavedState, SavedWeights
from jaxllm.executor.weights.sharded.save import save_state
from jaxllm.models.causal_lm import abstract_model, checkpoint_names, kv_scales_of
from jaxllm.models.checkpoint.array_tensor import ArrayTensor
from jaxllm.models.checkpoint.checkpoint import Checkpoint
from jaxllm.models.checkpoint.other_formats import STATE_FILE
from jaxllm.models.checkpoint.parameter_reloader import all_finite
from jaxllm.models.checkpoint.weight_update import WeightUpdate
from jaxllm.models.errors import ModelError

Place = Literal["devices", "host", "nowhere"]


class WeightStore:
    """The parameters of each stage of an engine. Whoever calls its methods has no step under way.

    `place` is where they are. While `needs` says something, they are not those of one model: an update has failed, or
    was never made, and only one with all tensors makes them so again.
    """

    def __init__(self, resolved: ResolvedConfig, calls: DeviceCalls) -> None:
        self._parts = tuple(zip(resolved.stage_configs, calls.every, strict=True))
        self._folder: Path | None = resolved.folder
        """Folder of the checkpoint that has these weights; None if they come from elsewhere."""
        self._copies: list[list[HostCopy | jax.Array]] = []
        self._updates: list[WeightUpdate] = []
        self._begun_whole = False
        self.place: Place = "devices"
        self.needs: str | None = None
        self.version = 0
        """Counts the updates."""

    # Sleep

    def leave(self, *, keep: bool, progress: Progress = silent) -> None:
        """Free the memory of the devices; `keep` the weights on the host, or drop them."""
        assert not self._updates
        for _, calls in self._parts:
            leaves, calls.parameters = calls.parameters, ()
            if keep and self.needs is None and self.place == "devices":
                self._copies.append(offload(leaves, progress))
            else:
                for leaf in leaves:
                    leaf.delete()
        # JAX lets go of mapped files only then.
        gc.collect()
        self.place = "host" if self._copies else "nowhere"

    def forget(self) -> None:
        """Drop what is on the host."""
        self._copies.clear()
        self.place = "nowhere" if self.place == "host" else self.place

    def restore(self, progress: Progress = silent) -> None:
        """Bring weights that are on the host to the devices again."""
        if self.place == "host":
            for (_, calls), copies in zip(self._parts, self._copies, strict=True):
                calls.parameters = bring_back(copies, progress)
            self._copies.clear()
            self.place = "devices"

    def read_again(self, progress: Progress = silent) -> None:
        """Read weights that are nowhere from their checkpoint; `needs` says so where they have none.

        Raises `RequestError` for a checkpoint that cannot be read any more.
        """
        if self.place != "nowhere":
            return
        if self._folder is None:
            self.needs = "the weights came from a trainer and were discarded (sleep level 2): update them"
            return
        version, resolved = self.version, self._parts[0][0]
        if resolved.config.model.weight_cache_size and self._folder == resolved.folder:
            self._map_again(progress)
        else:
            self.update_from(self._folder, progress)
        self.version = version  # They are the same as before.

    # Updates

    def begin(self, progress: Progress = silent) -> None:
        """An update begins: `take` its tensors, then `finish`."""
        if self._updates:
            raise RequestError("a weight update is already in progress: finish it first")
        if self._parts[0][0].config.lora.merge_lora is not None:
            raise RequestError("weight update: merge_lora has changed the weights; restart the engine instead")
        self.restore(progress)
        self._begun_whole = self.place == "devices" and self.needs is None
        try:
            for part, calls in self._parts:
                model = abstract_model(part.model, part.forward, jnp.dtype(part.dtype))
                names = checkpoint_names(part.model, part.forward)
                self._updates.append(WeightUpdate(model, names, calls.parameters or None))
            for _, calls in self._parts:
                calls.parameters = ()
        except BaseException:
            # An interrupt must not lose the weights.
            if len(self._updates) == len(self._parts):
                self._give_back()
            self._updates = []
            raise

    def take(self, tensors: Iterable[tuple[str, Any]]) -> None:
        """Replace tensors by arrays; all are checked before the first is replaced.

        Raises `RequestError`; after one that is wrong the update is over, and `needs` says if weights are lost.
        """
        if not self._updates:
            raise RequestError("no weight update is in progress: call start_weight_update first")
        source = "weight update"
        with self._abort_on_error():
            found = [ArrayTensor.of(name, array, source) for name, array in tensors]
            matched = [each.match(found, source) for each in self._updates]
            for update, own in zip(self._updates, matched, strict=True):
                if own:
                    update.take(own)
            for tensor in found:
                tensor.values.release()

    def check(self, tensors: Iterable[tuple[str, Any]]) -> None:
        """Raise `RequestError` for a tensor whose name, shape or type is wrong.

        Arrays of NumPy are looked through for numbers that are not finite; values on devices are not read.
        """
        source = "weight update"
        given = list(tensors)
        with self._abort_on_error():
            found = [ArrayTensor.of(name, array, source) for name, array in given]
            for each in self._updates:
                each.match(found, source)
            for name, array in given:
                if isinstance(array, np.ndarray) and not all_finite(array):
                    raise ModelError(f"{source}: tensor {name!r} contains values that are not finite")

    def finish(self, folder: Path | None = None) -> None:
        """The update is complete. Raises `RequestError` where something is missing.

        `folder` is the checkpoint that has the weights now.
        """
        if not self._updates:
            raise RequestError("no weight update is in progress: call start_weight_update first")
        with self._abort_on_error():
            for each in self._updates:
                each.finish()
            missing = [name for each in self._updates for name in each.missing()]
            if missing:
                some = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
                raise ModelError(f"weight update: {len(missing)} parameters received no values: {some}")
            if not self._begun_whole and not all(each.is_whole for each in self._updates):
                raise ModelError("weight update: must contain all tensors, because the previous weights were lost")
        has_changed = any(each.has_changed for each in self._updates)
        self._give_back()
        self.needs = None
        if has_changed:
            self._folder = folder
            self.version += 1

    def abandon(self, reason: str) -> None:
        """The update is over, because of something else; `needs` says if weights are lost."""
        self._give_up(RuntimeError(reason))

    def update_from(self, folder: Path, progress: Progress = silent) -> None:
        """Replace all weights by those of a checkpoint. Raises `RequestError`: `needs` says if weights are lost."""
        load_format = self._parts[0][0].config.model.load_format
        if load_format == "dummy" and folder == self._parts[0][0].folder:
            self._make_again(progress)
            return
        load_format = "auto" if load_format in ("dummy", "sharded_state") else load_format
        if (folder / STATE_FILE).is_file():
            self._update_from_state(folder, progress)
            return
        self.begin(progress)
        with self._abort_on_error():
            checkpoint = Checkpoint(folder, load_format)
            matched = [each.match(checkpoint.tensors, str(folder), is_whole=True) for each in self._updates]
            scales = [
                kv_scales_of(abstract_model(part.model, part.forward, jnp.dtype(part.dtype)), checkpoint)
                for part, _ in self._parts
            ]
            for update, own, beside in zip(self._updates, matched, scales, strict=True):
                update.take(own, lambda done, total: progress("Loading weights", done, total))
                update.take_scales(beside)
                if update.lacks_apart:
                    update.take_apart(load_drafter(self._parts[-1][0]))
        self.finish(folder)

    def _update_from_state(self, folder: Path, progress: Progress) -> None:
        """Replace all weights by those of a saved state, which is checked before anything changes."""
        self.begin(progress)
        with self._abort_on_error():
            state = SavedState(folder)
            saved = [SavedWeights(state, part) for part, _ in self._parts]
            for update, own in zip(self._updates, saved, strict=True):
                update.take_saved(own.read(progress))
        self.finish(folder)

    def save(self, path: str, pattern: str | None, max_size: int | None, progress: Progress = silent) -> None:
        """Write the weights to a folder as they lie on the devices. Raises `RequestError`."""
        if self._updates or self.place != "devices" or self.needs is not None:
            why = self.needs or (
                "a weight update is in progress"
                if self._updates
                else "the weights are offloaded: wake up the engine first"
            )
            raise RequestError(f"save_sharded_state: {why}")
        save_state([(part, calls.parameters) for part, calls in self._parts], path, pattern, max_size, progress)

    def _map_again(self, progress: Progress) -> None:
        """The same weights as at the start, from the cache where they are there."""
        try:
            self._make_again(progress)
        except ModelError as error:
            self.place, self.needs = "nowhere", "there are no weights: update them with all tensors"
            raise _refusal(error) from error

    def _make_again(self, progress: Progress) -> None:
        """Weights as at the start."""
        is_same = self.place == "devices" and self.needs is None and not self.version
        load_weights = open_engine_weights(self._parts[0][0])
        for part, calls in self._parts:
            for leaf in calls.parameters:
                leaf.delete()
            calls.parameters = ()
            calls.parameters = load_weights(part, progress)
        self._copies.clear()
        self.place, self.needs = "devices", None
        self.version += not is_same

    def distrust(self, reason: str) -> None:
        """These weights are not those that are wanted."""
        self.needs, self._folder = reason, None

    @contextmanager
    def _abort_on_error(self) -> Iterator[None]:
        """Raises `RequestError` for whatever is raised but an interrupt, which ends the update as well."""
        try:
            yield
        except Exception as error:
            self._give_up(error)
            raise _refusal(error) from error
        except BaseException as interrupt:
            self._give_up(interrupt)
            raise

    def _give_up(self, error: BaseException) -> None:
        """An update has failed: take back what there is."""
        changed = any(each.has_changed for each in self._updates)
        before = self.needs
        self._give_back()
        if self.place == "devices" and changed:
            why = str(error) or type(error).__name__
            self.needs = f"a weight update failed halfway ({why}): repeat it with all tensors"
        elif before is not None:
            self.needs = before

    def _give_back(self) -> None:
        """The parameters are the programs' again."""
        found = [each.leaves for each in self._updates]
        self._updates = []
        if any(leaves is None for leaves in found):
            for leaves in found:
                for leaf in leaves or ():
                    leaf.delete()
            self.place = "nowhere"
            self.needs = "there are no weights: update them with all tensors"
            return
        for (_, calls), leaves in zip(self._parts, found, strict=True):
            assert leaves is not None
            calls.parameters = leaves
        self.place = "devices"


def _refusal(error: Exception) -> RequestError:
    """An error of an update, for whoever asked for that."""
    if isinstance(error, RequestError):
        return error
    text = str(error) if isinstance(error, ModelError) else f"{type(error).__name__}: {error}"
    return RequestError(text, "weights")
