"""The asynchronous client: an engine in a process of its own, with many requests in flight on one event loop."""

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from msgspec.structs import replace

from jaxllm.config import EngineConfig
from jaxllm.config.engine_info import EngineInfo
from jaxllm.config.progress import Progress
from jaxllm.engine.stats import StepStats
from jaxllm.errors import EngineError, JaxLLMError, fresh
from jaxllm.requests.request import as_request_ids
from jaxllm.serving.ipc.client.connection import Launch
from jaxllm.serving.ipc.client.engine_requests import EngineRequests
from jaxllm.serving.ipc.client.health import (
    RESTART_WAIT_SECONDS,
    RETRY_AFTER,
    EngineHealth,
    Heartbeat,
    come_back,
    watch,
)
from jaxllm.serving.ipc.client.in_flight import Reconciliation
from jaxllm.serving.ipc.client.placement import of_rank
from jaxllm.serving.ipc.client.queues import EventQueue
from jaxllm.serving.ipc.client.shared_state import SharedState
from jaxllm.serving.ipc.client.supervisor import STALE_WEIGHTS, EngineSupervisor, RestartBudget
from jaxllm.serving.ipc.messages import (
    Abort,
    Call,
    Called,
    CallResult,
    FromEngine,
    Outputs,
    Reconcile,
    Reconciled,
    ToEngine,
    UpdateWeights,
)
from jaxllm.serving.text.engine import OutputSink
from jaxllm.serving.text.progress import SequenceProgress

logger = logging.getLogger(__name__)


class AsyncEngine:
    """Sends requests of one kind to the engine process, and what comes of them to their readers.

    Everything belongs to the event loop on which this is made. When the process ends or hangs, another one is started
    while the budget lasts, and goes on with the requests, see `EngineRequests`; if there is none, they get an
    `EngineError`.
    """

    def __init__(
        self, number: int, shared: SharedState, *, step_timeout: float, launch: Launch, restarts: RestartBudget
    ) -> None:
        """As `AsyncLLM.start`. It is engine `number` of those that share a state."""
        self.number = number
        self._shared = shared
        self.health = EngineHealth()
        self.stats = StepStats()
        """The engine's last state."""
        self.info: EngineInfo
        """The model and its limits."""
        self._loop = asyncio.get_running_loop()
        self._events = EventQueue[tuple[int, FromEngine | EngineError]](self._take_events)
        self._supervisor = EngineSupervisor(self, launch, restarts)
        self._heartbeat = Heartbeat(step_timeout)
        self._requests = EngineRequests(number, shared, self.health, send=self._send, on_drop=self._settle)
        self._reconciliation = Reconciliation(self._requests.in_flight)
        self._replies: dict[int, asyncio.Future[Called]] = {}
        self._numbers = itertools.count()
        self._watch: asyncio.Task[None] | None = None
        self._asked_at = 0.0

    async def start(
        self, config: EngineConfig, *, progress: Progress, log_level: str, json_logs: bool, stale_weights: str = ""
    ) -> EngineInfo:
        """Start the process. Raises `ConfigError`, `CapacityError` and `EngineError`.

        `stale_weights` says why the checkpoint's weights are not the right ones; it computes nothing before an update.
        """
        settings: dict[str, Any] = {"progress": progress, "log_level": log_level, "json_logs": json_logs}
        if stale_weights:
            settings["stale_weights"] = stale_weights
            self.stats = StepStats(weights_problem=stale_weights)
        self.info = await self._supervisor.start(of_rank(config, self.number), **settings)
        return self.info

    def serve(self, outputs: OutputSink[Any]) -> None:
        """From now on requests are taken: `outputs` makes results of what the engine says of them."""
        self._requests.serve(outputs)
        self._watch = asyncio.create_task(watch(self.health, self._heartbeat, self._reconcile, self._give_up))
        for tell in self._shared.on_serve if self.health.error is None else ():
            tell(self.info, self.number)

    @property
    def pid(self) -> int:
        """Process id of the engine."""
        return self._supervisor.connection.pid

    @property
    def living_pid(self) -> int | None:
        """Process id of the engine; None while there is none."""
        return self.pid if self.health.is_up else None

    def restart(self, reason: str) -> None:
        """Kill the process, if there is one; the next one goes on with its requests."""
        if self.health.is_up:
            self._give_up(EngineError(reason))

    def __len__(self) -> int:
        """Requests in flight."""
        return len(self._requests)

    @property
    def request_ids(self) -> list[str]:
        """The requests in flight."""
        return self._requests.in_flight.ids()

    @property
    def num_queued_tokens(self) -> int:
        """Prompt tokens of the requests that have brought nothing yet."""
        return self._requests.num_queued_tokens

    @property
    def state(self) -> StepStats:
        """The engine's last state. While there is none, requests wait for the next one."""
        return self.stats if self.health.is_up else replace(self.stats, num_waiting=self.num_without_engine)

    @property
    def num_without_engine(self) -> int:
        """Sequences that wait for the engine to be started again."""
        return 0 if self.health.is_up else self._requests.in_flight.num_sequences

    def in_flight(self) -> Iterator[SequenceProgress]:
        """How far each sequence has come."""
        return self._requests.sequences()

    @property
    def idle(self) -> asyncio.Event:
        """Set while no request is in flight."""
        return self._requests.idle

    def _send(self, message: ToEngine) -> None:
        self._supervisor.connection.send(message)

    # Requests

    def submit(
        self, request: Any, reader: Any, make_message: Callable[[list[Any]], ToEngine], *, pinned: bool = False
    ) -> None:
        """Send a prepared request, whose results are for this reader.

        It has been admitted, and the engine is there, or will be soon. `make_message`, the same for all requests, is
        called with the children of the request. If it is `pinned`, no other engine shall go on with it.
        """
        if self.health.down is None:
            self._heartbeat.expect()
        self._requests.submit(request, reader, make_message, pinned=pinned)

    def adopt(self, reader: Any, followed: Any, make_message: Callable[[list[Any]], ToEngine]) -> None:
        """Go on with a request of another engine, which has ended; see `Refuge`."""
        if self.health.down is None:
            self._heartbeat.expect()
        self._requests.adopt(reader, followed, make_message)

    def move_unsent(self) -> None:
        """Another engine is there: while this one is not, let it have what none has had yet."""
        if self.health.down is not None and self.health.error is None:
            self._requests.move_waiting(begun=False)

    def abort(self, request_ids: str | Iterable[str]) -> None:
        """End requests with what there is of them; whoever reads them hears of it. Unknown ids are ignored."""
        self._requests.deliver(self._requests.outputs.end(as_request_ids(request_ids)))
        self._settle()

    def give_up(self, names: list[str]) -> None:
        """Nobody gets the answers to these requests, which may have ended, by the engine's ids."""
        if self.health.is_up:
            self._send(Abort(names))

    def drop(self, reader: Any) -> None:
        """End the request of a reader that reads no more, unless it has ended, or is another engine's."""
        self._requests.drop(reader)

    def expire(self, reader: Any, error: JaxLLMError) -> None:
        """End the request of a reader with an error, as its time is over, unless it has ended or moved."""
        self._requests.expire(reader, error)

    async def ask(self, make: Callable[[int], Call | UpdateWeights]) -> CallResult:
        """The engine's answer to a message, made from its number. Raises the `RequestError` that is the answer."""
        self.health.check()
        number = next(self._numbers)
        reply = self._replies[number] = self._loop.create_future()
        self._heartbeat.expect()
        self._send(make(number))
        return (await reply).outcome()

    # Life and death

    @property
    def has_other_weights(self) -> bool:
        """See `EngineSupervisor.has_other_weights`."""
        return self._supervisor.has_other_weights

    def mark_weights_stale(self) -> None:
        """See `EngineSupervisor.mark_weights_stale`."""
        self._supervisor.mark_weights_stale()

    def trust_weights(self) -> None:
        """See `EngineSupervisor.trust_weights`."""
        self._supervisor.trust_weights()

    def retire(self) -> None:
        """From now on an engine that ends is not replaced."""
        self._supervisor.retire()

    def fail_all(self, message: str) -> None:
        """End every request with `EngineError(message)`."""
        self._requests.fail_all(EngineError(message))

    async def shutdown(self) -> None:
        """End the engine process; whoever still waits gets an error. May be called again."""
        self.close()
        await self._supervisor.close()

    def close(self) -> None:
        """Whoever still waits gets an error, and nothing more is sent; the process goes on until `end_process`."""
        if self._watch is not None:
            self._watch.cancel()
        self.health.error = self.health.error or EngineError("the engine has been shut down")
        self.fail_all(str(self.health.error))
        self._events.close()
        self._supervisor.retire()

    def end_process(self) -> None:
        """End the process and wait for it. From any thread, also when there is no event loop any more."""
        self._supervisor.connection.close()

    def _owes(self) -> bool:
        """Whether the engine is to say something."""
        return bool(self._requests) or bool(self._replies) or self._reconciliation.is_open

    def _settle(self) -> None:
        """What the engine owes may have changed without news of it."""
        self._heartbeat.settle(owed=self._owes())

    def _give_up(self, error: EngineError) -> None:
        self._suspend(error, kill=True)

    def _suspend(self, error: EngineError, *, kill: bool = False) -> None:
        """There is no engine any more: have another one started, which goes on with the requests."""
        error = self.health.suspend(error)
        stale = self._supervisor.has_other_weights
        # The next engine computes nothing before an update, for which no request can wait.
        self.stats = StepStats(weights_problem=STALE_WEIGHTS if stale else "")
        self._loop.call_later(RESTART_WAIT_SECONDS, self._stop_waiting, error)
        self._heartbeat.settle(owed=False)
        unsent = self._supervisor.connection.unsent()
        left = self._requests.leave(unsent, error, stale=stale)
        self._forget_questions(error)
        self._supervisor.replace(error, kill=kill)
        if self.health.error is None:
            self._requests.go_on(left, [] if stale else unsent)

    def _forget_questions(self, error: EngineError) -> None:
        """There is nobody any more who could answer."""
        if not self._requests.is_serving:
            return
        for reply in self._replies.values():
            if not reply.done():
                reply.set_exception(fresh(error))
        self._replies.clear()
        self._reconciliation.cancel()
        # Nothing runs, and nothing waits in the engine.
        self._requests.observe(StepStats(), self._requests.outputs.process([]).measurements)

    def _stop_waiting(self, error: EngineError) -> None:
        """The next engine takes its time: who has nothing yet may try elsewhere, and the others are served."""
        if self.health.down is error:
            self._requests.stop_waiting(come_back(error))

    def hear_end(self, generation: int, error: EngineError) -> None:
        """In the listening thread."""
        self._events.put_at_once((generation, error))

    def take_restart(self, info: EngineInfo) -> None:
        """Another engine is ready, and gets what waits for it."""
        self.info = info
        self._heartbeat.heard(owed=self._owes())
        self.health.resume()
        self._requests.try_next()
        for restarted in self._shared.on_restart:
            restarted(info, self.number)

    def take_loss(self, error: EngineError) -> None:
        """There will be no other engine."""
        if self.health.error is not None:
            return  # It has been closed.
        self.health.lose(error)
        self._requests.flee(error)

    # Events of the engine

    def hear(self, generation: int, message: FromEngine) -> None:
        """In the listening thread."""
        if generation == self._supervisor.generation:
            self._heartbeat.heard(owed=self._owes())
            self._events.put((generation, message))

    def _take_events(self, events: list[tuple[int, FromEngine | EngineError]]) -> None:
        for generation, message in events:
            if generation != self._supervisor.generation or self.health.error is not None:
                continue  # Of an engine that has been given up.
            if not self._requests.is_serving and isinstance(message, Outputs):
                self._take_state(message.stats)
                continue  # Of others' requests, while we still start.
            match message:
                case Outputs():
                    self._take_outputs(message)
                case Called(number):
                    reply = self._replies.pop(number, None)
                    # Whoever asked may have gone, or have been told that the engine is gone.
                    if reply is not None and not reply.done():
                        reply.set_result(message)
                case Reconciled(_, unknown):
                    self._take_reconciled(unknown)
                case EngineError():
                    self._suspend(message)
        self._requests.try_next()
        self._settle()

    def _take_state(self, stats: StepStats | None) -> None:
        if stats is not None:
            self.stats = stats
            if stats.weights_version:
                self.mark_weights_stale()
            if stats.weights_problem == STALE_WEIGHTS and self._requests.is_serving:
                # They came before it was known that the engine was started again.
                self._requests.fail_all(EngineError(STALE_WEIGHTS, RETRY_AFTER))

    def _take_outputs(self, message: Outputs) -> None:
        self._take_state(message.stats)
        try:
            self._requests.deliver(self._requests.outputs.process(message.outputs), message.stats)
        except Exception as error:
            # A defect here must not leave anybody waiting for results that were lost.
            logger.exception("cannot read the engine's results")
            self.fail_all(f"cannot read the engine's results: {error!r}")

    # Which requests there are

    def _reconcile(self) -> None:
        """Ask the engine to compare its requests with ours; one question at a time."""
        self._heartbeat.expect()
        if not self._reconciliation.is_open:
            names = self._reconciliation.ask(self._requests.expected())
            self._asked_at = time.monotonic()
            self._send(Reconcile(next(self._numbers), names))

    def _take_reconciled(self, unknown: list[str]) -> None:
        for observe in self._shared.on_lag:
            observe(time.monotonic() - self._asked_at, self.number)
        lost = self._reconciliation.lost(unknown, self._requests.outputs.running() if unknown else {})
        if lost:
            logger.error("the engine has lost %d requests that wait for it: %s", len(lost), ", ".join(lost[:5]))
            self._requests.fail(lost, EngineError("this request was lost on the way to the engine", RETRY_AFTER))
