"""Several engines of the same model, each in a process of its own, as if they were one (`data_parallel_size`)."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, get_args

from jaxllm.config.engine_info import EngineInfo
from jaxllm.engine.stats import StepStats, merge_stats
from jaxllm.errors import EngineError, JaxLLMError, QueueFullError, RequestError
from jaxllm.serving.affinity.prefixes import Prompt
from jaxllm.serving.ipc.client.asynchronous import AsyncEngine
from jaxllm.serving.ipc.client.control import called
from jaxllm.serving.ipc.client.event_followers import EventFollowers
from jaxllm.serving.ipc.client.health import RETRY_AFTER
from jaxllm.serving.ipc.client.members import GroupOptions, Members
from jaxllm.serving.ipc.client.router import Router, prompt_of
from jaxllm.serving.ipc.client.scaling import Scaling
from jaxllm.serving.ipc.client.shared_state import SharedState
from jaxllm.serving.ipc.messages import Call, CallResult, ControlMethod, EngineMethod, ToEngine, UpdateWeights


class EngineGroup:
    """Sends each request to one of its engines. Belongs to the event loop on which it is made.

    The others go on with the requests of an engine that ends, and get those that it was never sent. While it is started
    again, they get what is new; where all are gone, new requests wait for the first that is back.
    """

    def __init__(self, options: GroupOptions) -> None:
        """Nothing is started yet."""
        self.state = SharedState(options.max_request_crashes)
        self.state.find_refuge = self._find_refuge
        self._max_queued_requests, self._max_in_flight = options.max_queued_requests, options.max_in_flight
        self._max_queued_tokens = options.max_queued_tokens
        self.is_guest = options.is_guest
        """Whether another process has the engines."""
        self._router = Router(options.routing)
        self.state.observers.append(self)
        self.state.on_restart.append(self._forget)
        self._followers = EventFollowers(self._router.prefixes, options.local_engines)
        self.state.on_serve.append(self._followers.follow)
        self.state.on_restart.append(self._followers.follow)
        self.state.on_resize.append(self._followers.resize)
        self.state.on_resize.append(self._forget_removed)
        self.members = Members(options, self.state)
        self.scaling = Scaling(self.members, options.scale)
        self.loss = self.members.loss
        """Done when all engines are gone for good, with the reason of the last."""

    @property
    def info(self) -> EngineInfo:
        """The model and its limits, as the engine said that was heard last when it started."""
        return self.members.info

    @property
    def engines(self) -> list[AsyncEngine]:
        """All engines, by number."""
        return self.members.all

    def __len__(self) -> int:
        """Requests in flight."""
        return len(self.state.admission)

    # Requests

    @property
    def request_ids(self) -> list[str]:
        """The requests in flight."""
        return [name for engine in self.engines for name in engine.request_ids]

    def submit(
        self,
        requests: Sequence[Any],
        readers: Sequence[Any],
        make_message: Callable[[list[Any]], ToEngine],
        engine: int | None = None,
    ) -> None:
        """Send prepared requests, all or none, each with the reader of its results; see `AsyncEngine.submit`.

        `engine` is the number of the one to take.

        Raises `QueueFullError` when too many wait already, `EngineError` when there is no engine and none to come soon,
        and `RequestError` for an id in use or an engine that there is not.
        """
        possible = self._possible(engine)
        most, queued = self._max_in_flight, self._max_queued_requests
        if queued is not None:
            room = queued + len(self.members.there) * self.members.info.max_running
            most = room if most is None else min(room, most)
        self.state.admission.check(requests, most)
        if self._max_queued_tokens is not None:
            self._check_queued_tokens(self._max_queued_tokens)
        for request, reader in zip(requests, readers, strict=True):
            chosen = self._choose(possible, request)
            self.members.all[chosen].submit(request, reader, make_message, pinned=engine is not None)

    def _choose(self, possible: Sequence[int], request: Any) -> int:
        first = request.children[0]
        prompt = prompt_of(first) if self._router.compares_prompts else Prompt(token_ids=first.prompt_token_ids)
        return self._router.choose(possible, prompt, sequences=len(request.children))

    def _find_refuge(self, number: int, reader: Any) -> AsyncEngine | None:
        """An engine that lives, for a request of the one of this number."""
        living = [
            each.number
            for each in self.members.open
            if each.number != number and each.health.is_up and not each.stats.weights_problem
        ]
        return self.members.all[self._choose(living, reader.request)] if living else None

    def _check_queued_tokens(self, most: int) -> None:
        """Raise `QueueFullError` while prompts of so many tokens wait, or are computed."""
        queued = sum(engine.num_queued_tokens for engine in self.engines)
        if queued >= most:
            raise QueueFullError(f"the prefill queue is full: {queued} of {most} tokens; try again later")

    def drop(self, reader: Any) -> None:
        """End the request of a reader that reads no more, without further results, unless it has ended."""
        for engine in self.members.all:
            engine.drop(reader)

    def expire(self, reader: Any, error: JaxLLMError) -> None:
        """End the request of a reader with an error, because its time is over, unless it has ended."""
        for engine in self.members.all:
            engine.expire(reader, error)

    def _possible(self, asked: int | None) -> list[int]:
        """The engines that may be chosen: those that live, or else those to come. Raises as `submit`."""
        engines = self.members.open
        if asked is not None:
            if not 0 <= asked < len(engines):
                allowed = f"between 0 and {len(engines) - 1}" if len(engines) > 1 else "0"
                raise RequestError(f"data_parallel_rank={asked}: must be {allowed}", "data_parallel_rank")
            engines[asked].health.check_soon()
            if engines[asked].stats.weights_problem:
                raise EngineError(engines[asked].stats.weights_problem, RETRY_AFTER)
            return [asked]
        living = [each.number for each in engines if each.health.is_up]
        candidates = living or [each.number for each in engines if each.health.is_soon]
        if not candidates:
            engines[0].health.check_soon()
        usable = [number for number in candidates if not engines[number].stats.weights_problem]
        if candidates and not usable:
            raise EngineError(engines[candidates[0]].stats.weights_problem, RETRY_AFTER)
        return usable

    def abort(self, request_ids: str | Iterable[str]) -> None:
        """End requests with what there is of them; whoever reads them hears of it. Unknown ids are ignored."""
        names = request_ids if isinstance(request_ids, str) else list(request_ids)
        for engine in self.engines:
            engine.abort(names)

    def give_up(self, names: list[str]) -> None:
        """Nobody gets the answers to these requests, by the engines' ids: nothing of their prompts need be kept."""
        for engine in self.engines:
            engine.give_up(names)

    async def call(self, method: EngineMethod, **arguments: Any) -> CallResult:
        """What a method returns; of several engines whether it holds for all, or what the first says.

        Raises like `ask`, and `EngineError` for other weights while an engine is started again, which would miss them.
        """
        if method in ("start_weight_update", "update_weights_from", "finish_weight_update"):
            for engine in self.members.there:
                if not engine.health.is_up:
                    raise EngineError(
                        f"engine {engine.number} is restarting: repeat the update once it is back", RETRY_AFTER
                    )
        if method == "save_sharded_state":
            # All engines have the same weights.
            first = next((engine for engine in self.engines if engine.health.is_up), self.engines[0])
            return await first.ask(called(method, **arguments))
        ask = self._ask_to_update if method in ("update_weights_from", "finish_weight_update") else self.ask
        results = await ask(called(method, **arguments))
        is_question = method in ("is_sleeping", "is_paused")
        if method == "reset_prefix_cache" or (method in get_args(ControlMethod) and not is_question):
            for engine in self.engines:
                self._router.forget_prefixes(engine.number)
        if is_question:
            return any(results)
        return all(results) if isinstance(results[0], bool) else results[0]

    async def ask(self, make: Callable[[int], Call | UpdateWeights]) -> list[CallResult]:
        """The answer of each engine to a message.

        One that is being started again is left out: it has nothing to forget. Raises the `RequestError` that the method
        raises, once all have answered, and `EngineError` where no engine answers.
        """
        up = [engine for engine in self.engines if engine.health.is_up]
        asked = (engine.ask(make) for engine in up or self.engines)
        results: list[CallResult] = []
        for result in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result
            results.append(result)
        return results

    async def _ask_to_update(self, make: Callable[[int], Call | UpdateWeights]) -> list[CallResult]:
        """As `ask`. An engine that ends meanwhile waits for the new weights when it is back."""
        first = [engine for engine in self.engines if not engine.has_other_weights]
        for engine in first:
            engine.mark_weights_stale()
        try:
            return await self.ask(make)
        except RequestError:
            if not any(engine.stats.weights_version for engine in self.engines):
                for engine in first:
                    engine.trust_weights()
            raise

    def engine_state(self) -> StepStats:
        """The engines' last states, together. Where there is no engine for now, requests wait for it."""
        return merge_stats([engine.state for engine in self.members.open])

    def num_without_engine(self) -> list[int]:
        """Sequences that wait for each engine to be started again."""
        return [engine.num_without_engine for engine in self.engines]

    # Life and death

    def check_health(self) -> None:
        """Raise `EngineError`, saying why, when no engine answers, or all that do need other weights first."""
        engines = self.members.open
        up = [engine for engine in engines if engine.health.is_up]
        if not up:
            engines[0].health.check()
        problems = [engine.stats.weights_problem for engine in up]
        if all(problems):
            raise EngineError(problems[0], RETRY_AFTER)

    async def wait(self) -> None:
        """Wait while there is no engine. Raises `EngineError` when there will be none."""
        if any(engine.health.is_up for engine in self.engines):
            return
        waiting = [asyncio.ensure_future(engine.health.wait()) for engine in self.engines]
        errors: list[EngineError] = []
        try:
            for each in asyncio.as_completed(waiting):
                try:
                    await each
                except EngineError as error:
                    errors.append(error)
                else:
                    return
            raise errors[-1]
        finally:
            for each in waiting:
                each.cancel()

    async def drain(self, seconds: float) -> bool:
        """Wait until nothing is in flight. False when that takes longer. An engine that ends now is not replaced."""
        for engine in self.engines:
            engine.retire()
        try:
            async with asyncio.timeout(seconds):
                await self.state.admission.idle.wait()
        except TimeoutError:
            return False
        return True

    def fail_all(self, message: str) -> None:
        """End every request with `EngineError(message)`."""
        for engine in self.engines:
            engine.fail_all(message)

    async def shutdown(self) -> None:
        """End the processes; whoever still waits gets an error. May be called again."""
        await self.scaling.close()
        await self._followers.close()
        await asyncio.gather(*(engine.shutdown() for engine in self.engines))

    def close(self) -> None:
        """Whoever still waits gets an error; the processes go on until `end_processes`."""
        for engine in self.engines:
            engine.close()

    def end_processes(self) -> None:
        """End the processes and wait for them. From any thread, also when there is no event loop any more."""
        for engine in self.engines:
            engine.end_process()

    def observe(self, stats: StepStats | None, measured: object, engine: int = 0) -> None:
        """An engine's state after a step, for the router."""
        del measured
        if stats is not None:
            self._router.observe(engine, stats)

    def _forget(self, info: EngineInfo, engine: int) -> None:
        self.members.info = info
        self._router.forget(engine)
        for other in self.members.all:
            other.move_unsent()

    def _forget_removed(self, size: int) -> None:
        self._router.forget_from(size)
