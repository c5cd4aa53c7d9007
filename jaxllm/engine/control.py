"""Control of an engine by an operator or a trainer: pause, sleep, and replace its weights."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from jaxllm.adapters.control import AdapterControl
from jaxllm.config.progress import Progress, silent
from jaxllm.errors import RequestError, quoted
from jaxllm.requests.request import Request

if TYPE_CHECKING:
    from jaxllm.engine.engine import Engine
    from jaxllm.executor.resolved import ResolvedConfig
    from jaxllm.executor.weights.store import WeightStore

PauseMode = Literal["abort", "wait", "keep"]
"""Requests of an engine that pauses are aborted, finish first, or resume later."""
TAGS = ("weights", "kv_cache", "scheduling")
"""Parts of an engine that wake up, under vLLM's names."""


class EngineControl(AdapterControl):
    """Belongs to an engine, and is called between its steps.

    While the engine is halted, requests wait: those that come meanwhile are held here.
    """

    def __init__(self, engine: "Engine", resolved: "ResolvedConfig") -> None:
        super().__init__(engine)
        self._engine, self._resolved = engine, resolved
        self._store: WeightStore | None = None
        self._deferred: dict[str, Request] = {}
        self._asleep: set[str] = set()
        self._level = 0
        self._is_paused = False
        self._is_updating = False
        self.is_draining = False
        """Whether requests run to their ends, and new ones wait."""
        self.is_halted = False
        """Whether no step may be computed."""

    # Requests

    def defer(self, request: Request) -> None:
        """Let a request wait here. Raises `RequestError` for an id in use."""
        name = request.request_id
        if name in self._deferred or self._engine.scheduler.get(name) is not None:
            raise RequestError(f"request_id={quoted(name)} is in use by an unfinished request", "request_id")
        self._deferred[name] = request

    def pop_deferred(self, request_id: str) -> Request | None:
        """Forget a request that waits here."""
        return self._deferred.pop(request_id, None)

    @property
    def deferred_request_ids(self) -> set[str]:
        """Ids of the requests that wait here."""
        return set(self._deferred)

    @property
    def deferred(self) -> list[Request]:
        """The requests that wait here, in the order in which they came."""
        return list(self._deferred.values())

    # Pause

    def pause(self, mode: PauseMode = "abort", *, clear_cache: bool = True, again: bool = False) -> bool:
        """Compute nothing more until `resume`. False while requests still run to their ends (`wait`): ask `again` then.

        `clear_cache` forgets prefixes, unless requests are kept. Raises `RequestError`.
        """
        done = self._settle(mode, again=again)
        if done:
            self._is_paused = True
            self._update()
            if clear_cache and mode != "keep":
                self._engine.scheduler.reset_prefix_cache()
        return done

    def resume(self) -> None:
        """Go on after a pause."""
        self._is_paused = self.is_draining = False
        self._update()

    def is_paused(self) -> bool:
        """Whether the engine was paused."""
        return self._is_paused or self.is_draining

    def _settle(self, mode: PauseMode, *, again: bool) -> bool:
        """Bring it about that no step is under way, and no request runs unless it is kept; False: not yet."""
        if mode not in get_args(PauseMode):
            raise RequestError(f"mode={quoted(mode)}: choose one of {', '.join(get_args(PauseMode))}", "mode")
        if again and not (self.is_draining or self.is_halted):
            raise RequestError("the engine keeps running: it was resumed, woken up or restarted during the request")
        engine = self._engine
        if mode == "abort":
            engine.abort_request(engine.scheduler.unfinished_ids())
        elif mode == "wait" and engine.scheduler.has_unfinished and not self.is_halted:
            self.is_draining = True
            return False
        engine.drain()
        self.is_draining = False
        return True

    # Sleep

    def sleep(
        self, level: int = 1, mode: PauseMode = "abort", *, again: bool = False, progress: Progress = silent
    ) -> bool:
        """Free device memory: level 1 keeps the weights on the host, level 2 drops them, level 0 only pauses.

        The KV cache is dropped. `again`, and False while requests still run to their ends, are as with `pause`. Raises
        `RequestError`.
        """
        if level not in (0, 1, 2):
            raise RequestError(f"level={level}: must be 0, 1 or 2", "level")
        if not self._resolved.config.model.enable_sleep_mode:
            raise RequestError("sleep mode is off: start with --enable-sleep-mode (LLM(..., enable_sleep_mode=True))")
        if level == 2 and self._resolved.config.lora.merge_lora is not None:
            # What is read afterwards would be the weights without the adapter.
            raise RequestError("level=2: merge_lora has changed the weights, which cannot be read again; use level 1")
        store = self._weights() if level else None
        if self._is_updating:
            raise RequestError("a weight update is in progress: finish it before the engine sleeps")
        if not self._settle(mode, again=again):
            return False
        if store is not None:
            self._drop_cache()
            if "weights" not in self._asleep:
                store.leave(keep=level == 1, progress=progress)
                self._engine.runner.calls.forget_weights()
                self._engine.runner.calls.delete_adapters()
            elif level == 2:
                store.forget()
            if "kv_cache" not in self._asleep:
                self._engine.runner.calls.delete_state()
            self._asleep |= {"weights", "kv_cache"}
        self._asleep.add("scheduling")
        self._level = max(level, self._level)
        self._update()
        return True

    def wake_up(self, tags: Sequence[str] | None = None, progress: Progress = silent) -> None:
        """Bring back what sleeps: all, or what the `tags` name, "weights" or "kv_cache".

        Weights that were dropped are read from the checkpoint once all is awake, unless an update has brought them.
        Raises `RequestError`.
        """
        unknown = [tag for tag in tags or () if tag not in TAGS]
        if unknown:
            raise RequestError(f"tags={unknown}: choose from {', '.join(TAGS)}", "tags")
        # Also of a sleep that still waits for requests.
        self.is_draining = False
        waking = self._asleep & set(TAGS if tags is None else tags)
        if "weights" in waking:
            self._weights().restore(progress)
            self._asleep.discard("weights")
        if "kv_cache" in waking:
            self._engine.runner.calls.renew_state()
            self._asleep.discard("kv_cache")
        if not self._asleep - {"scheduling"}:
            if self._level and not self._is_updating:
                self._read_again(progress)
            self._asleep.clear()
            self._level = 0
        self._restore_adapters()
        self._update()

    def _read_again(self, progress: Progress) -> None:
        try:
            self._weights().read_again(progress)
            self._use_new_weights()
        finally:
            self._update()

    def is_sleeping(self) -> bool:
        """Whether anything sleeps."""
        return bool(self._asleep)

    # Weights

    def start_weight_update(self, progress: Progress = silent) -> None:
        """New weights come: tensors by `update_weights`. Nothing is computed until `finish_weight_update`.

        Requests that run go on with the new weights; their KV cache is computed again.
        """
        store = self._weights()
        self._forget_old()
        store.begin(progress)
        self._asleep.discard("weights")
        self._is_updating = True
        self._update()

    def check_weights(self, tensors: Sequence[tuple[str, Any]]) -> None:
        """Check names, shapes and types of tensors that will come. Raises `RequestError`, and the update is over."""
        self._or_end_update(self._weights().check, tensors)

    def update_weights(self, tensors: Sequence[tuple[str, Any]]) -> None:
        """Replace tensors, by their names in the checkpoint. Raises `RequestError`, and the update is over."""
        self._or_end_update(self._weights().take, tensors)

    def abort_weight_update(self, reason: str) -> None:
        """No more tensors come, and those that are missing were needed."""
        if self._is_updating:
            self._weights().abandon(reason)
            self._is_updating = False
            self._update()

    def finish_weight_update(self) -> int:
        """All have come; tensors that have not stay as they were. Returns how often weights were replaced so far.

        Raises `RequestError` where something is missing.
        """
        store = self._weights()
        self._or_end_update(store.finish)
        return self._end_update()

    def update_weights_from(self, folder: str | None = None, progress: Progress = silent) -> int:
        """Replace all weights by those of a checkpoint in a folder, or read those of the model again.

        Returns how often weights were replaced so far. Raises `RequestError`: nothing has changed where names, shapes
        or types are wrong; else `StepStats.weights_problem` says that another update is needed.
        """
        path = self._resolved.folder if folder is None else _folder(folder)
        store = self._weights()
        if self._is_updating:
            raise RequestError("a weight update is in progress: finish it first")
        self._forget_old()
        self._or_end_update(store.update_from, path, progress)
        self._asleep.discard("weights")
        return self._end_update()

    def save_sharded_state(
        self, path: str, pattern: str | None = None, max_size: int | None = None, progress: Progress = silent
    ) -> None:
        """Write the weights to a folder as they lie on the devices, for `load_format` "sharded_state".

        `pattern` names the files, by {rank}, {part} and, of stages, {pp_rank}; a file has at most `max_size` bytes
        where its tensors allow that. Raises `RequestError`.
        """
        if not self._engine.runner.calls.is_alone:
            raise RequestError(
                "save_sharded_state: not supported by an engine on several hosts; save it with an engine on one host"
            )
        self._weights().save(path, pattern, max_size, progress)

    def mark_weights_stale(self, reason: str) -> None:
        """The weights are not those that are wanted: nothing is computed before an update."""
        self._weights().distrust(reason)
        self._update()

    def _end_update(self) -> int:
        store = self._weights()
        self._is_updating = False
        self._engine.pages.use_weights(store.version)
        self._use_new_weights()
        if not self._asleep - {"scheduling"}:
            self._asleep.clear()
            self._level = 0
        self._update()
        return store.version

    def _use_new_weights(self) -> None:
        """Recompute from the new weights whatever depends on them: factors of adapters with magnitudes."""
        if self._engine.host_tier is not None:
            self._engine.host_tier.stop_files("the weights were replaced")
        self._engine.runner.calls.forget_weights()
        shape = self._resolved.adapters
        self._restore_adapters(write_again=shape is not None and shape.has_vectors)

    def _restore_adapters(self, *, write_again: bool = False) -> None:
        """Slots that were dropped with the weights come back with them, and what was in them is written again.

        `write_again`: also where they were not dropped.
        """
        adapters, calls = self._engine.adapters, self._engine.runner.calls
        if adapters is None or (calls.adapters and not write_again):
            return
        if self._is_updating or self._weights().place != "devices":
            return
        if not calls.adapters:
            calls.renew_adapters()
        adapters.write_again()

    def _or_end_update(self, work: Any, *arguments: Any) -> None:
        try:
            work(*arguments)
        except BaseException:
            self._is_updating = False
            self._update()
            raise

    def _forget_old(self) -> None:
        """No request holds anything that the old weights have computed."""
        self._engine.drain()
        self._drop_cache()

    def _drop_cache(self) -> None:
        self._engine.scheduler.preempt_all()
        if self._engine.media is not None:
            self._engine.media.forget_all()
        forgotten = self._engine.scheduler.reset_prefix_cache()
        assert forgotten, "a request holds pages although none runs"

    def _weights(self) -> "WeightStore":
        if self._store is None:
            if not self._engine.runner.calls.is_alone:
                raise RequestError(
                    "an engine on several hosts can neither sleep nor update its weights; restart it instead"
                )
            # Few engines sleep or take other weights: starts are faster without the import.
            from jaxllm.executor.weights.store import WeightStore

            self._store = WeightStore(self._resolved, self._engine.runner.calls)
        return self._store

    # State

    def stats(self) -> dict[str, Any]:
        """Its fields of `StepStats`."""
        return {
            "sleep_level": self._level,
            "is_paused": self.is_paused() or self._is_updating or self._asleep == {"scheduling"},
            "weights_version": 0 if self._store is None else self._store.version,
            "weights_problem": self._problem,
        }

    @property
    def _problem(self) -> str:
        """Why the weights cannot be used."""
        needs = None if self._store is None else self._store.needs
        return "" if needs is None or self._is_updating else needs

    def _update(self) -> None:
        self.is_halted = self._is_paused or self._is_updating or bool(self._asleep) or bool(self._problem)
        if not self.is_halted and not self.is_draining:
            deferred, self._deferred = self._deferred, {}
            for request in deferred.values():
                self._engine.add_or_refuse(request)


def _folder(name: str) -> Path:
    """Raises `RequestError` where there is none that can be looked at."""
    try:
        path = Path(name).expanduser()
        found = path.is_dir()
    except (OSError, RuntimeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise RequestError(f"weights: {quoted(name)} is not a folder on the engine's host: {reason}", "path") from error
    if not found:
        raise RequestError(f"weights: {quoted(name)} is not a folder on the engine's host", "path")
    return path
