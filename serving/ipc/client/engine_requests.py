"""The requests of one engine, as the client's side of it knows them."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from jaxllm.engine.stats import StepStats
from jaxllm.errors import EngineError, JaxLLMError, fresh
from jaxllm.serving.ipc.client.health import EngineHealth
from jaxllm.serving.ipc.client.in_flight import InFlight
from jaxllm.serving.ipc.client.queues import request_ids
from jaxllm.serving.ipc.client.resumption import Resumption
from jaxllm.serving.ipc.client.shared_state import SharedState
from jaxllm.serving.ipc.messages import Abort, Finish, ToEngine
from jaxllm.serving.text.engine import OutputSink
from jaxllm.serving.text.measurements import EndReason, Measurements
from jaxllm.serving.text.output_processor import Processed
from jaxllm.serving.text.progress import SequenceProgress

logger = logging.getLogger(__name__)


class EngineRequests:
    """Who reads them, what the engine is sent of them, and what becomes of them when it ends.

    Belongs to an event loop.
    """

    def __init__(
        self,
        number: int,
        shared: SharedState,
        health: EngineHealth,
        *,
        send: Callable[[ToEngine], None],
        on_drop: Callable[[], None],
    ) -> None:
        """Those of engine `number`, whose `health` it is. `send` sends it a message, now or when there is one.

        `on_drop` is called when requests have ended without news of the engine.
        """
        self._number, self._shared, self._health = number, shared, health
        self._send, self._on_drop = send, on_drop
        self._outputs: OutputSink[Any] | None = None
        self.in_flight = InFlight(shared.admission)
        """Their readers."""
        self._resumption = Resumption(self.in_flight, shared.crashes, self._progress)
        self._make_message: Callable[[list[Any]], ToEngine]

    def __len__(self) -> int:
        return len(self.in_flight)

    @property
    def idle(self) -> asyncio.Event:
        """Set while there is none."""
        return self.in_flight.idle

    @property
    def num_queued_tokens(self) -> int:
        """Prompt tokens of the requests that have brought nothing yet."""
        return 0 if self._outputs is None else self._outputs.num_queued_tokens

    def sequences(self) -> Iterator[SequenceProgress]:
        """How far each sequence has come."""
        return iter(()) if self._outputs is None else self._outputs.in_flight()

    # Their way

    def serve(self, outputs: OutputSink[Any]) -> None:
        """From now on requests are taken: `outputs` makes results of what the engine says of them."""
        self._outputs = outputs

    @property
    def is_serving(self) -> bool:
        """Whether requests are taken."""
        return self._outputs is not None

    @property
    def outputs(self) -> OutputSink[Any]:
        """See `serve`, which must have been called."""
        assert self._outputs is not None, "the engine is not serving yet"
        return self._outputs

    def _progress(self, request_id: str) -> tuple[int, int]:
        return self.outputs.progress(request_id)

    def submit(
        self, request: Any, reader: Any, make_message: Callable[[list[Any]], ToEngine], *, pinned: bool = False
    ) -> None:
        """See `AsyncEngine.submit`."""
        self._make_message = make_message
        if pinned:
            self._resumption.pin(reader)
        self.in_flight.add(request, reader)
        self.outputs.add(request, reader)
        if self._resumption.is_trying:
            self._resumption.hold(reader)
        else:
            self._send(make_message(request.children))

    def adopt(self, reader: Any, followed: Any, make_message: Callable[[list[Any]], ToEngine]) -> None:
        """Go on with a request of another engine, which has ended; see `Refuge`."""
        self._make_message = make_message
        self.outputs.adopt(followed)
        self.in_flight.adopt(reader)
        if self._resumption.is_trying:
            self._resumption.hold(reader)
        else:
            self._send_again(reader.request.request_id)

    def _send_again(self, request_id: str) -> None:
        self._send(self._make_message(self.outputs.continued(request_id)))

    def deliver(self, processed: Processed, stats: StepStats | None = None) -> None:
        """Give results to their readers, and tell the engine what it need not go on with."""
        if processed.stopped:
            self._send(Finish(processed.stopped))
        if processed.aborted and self._health.error is None:
            self._send(Abort(processed.aborted))
        in_flight = self.in_flight
        for request_id, error in processed.refused:
            in_flight.remove(request_id).fail(error)
        for output in processed.outputs:
            reader = in_flight.remove(output.request_id) if output.finished else in_flight[output.request_id]
            reader.put(output)
        self.observe(stats, processed.measurements)

    def observe(self, stats: StepStats | None, measured: Measurements | None) -> None:
        """Tell all observers."""
        for observer in self._shared.observers:
            observer.observe(stats, measured, self._number)

    # Their ends

    def drop(self, reader: Any) -> None:
        """End the request of a reader that reads no more, unless it has ended, or is another engine's."""
        name = reader.request.request_id
        # The name may be that of a newer request by now.
        if self.in_flight.get(name) is reader:
            self._drop([name], "abort")

    def expire(self, reader: Any, error: JaxLLMError) -> None:
        """End the request of a reader with an error, as its time is over, unless it has ended or moved."""
        name = reader.request.request_id
        if self.in_flight.get(name) is reader:
            self.fail([name], error, "timeout")

    def fail(self, names: list[str], error: JaxLLMError, reason: EndReason = "error") -> None:
        """End requests with an error."""
        readers = self.in_flight.readers(names)
        self._drop(names, reason)
        for reader in readers:
            reader.fail(fresh(error))

    def fail_all(self, error: JaxLLMError) -> None:
        """End every request with an error."""
        self.fail(self.in_flight.ids(), error)

    def _drop(self, names: Sequence[str], reason: EndReason) -> None:
        """End requests without further results."""
        if not names:
            return
        children = self.outputs.abort(names, reason)
        for name in names:
            self.in_flight.remove(name)
        if children and self._health.error is None:
            self._send(Abort(children))
        self.try_next()
        self._on_drop()

    # What becomes of them when the engine ends

    def leave(self, unsent: list[ToEngine], error: EngineError, *, stale: bool) -> list[str]:
        """See to all that the engine had, which has ended, and did not have what is `unsent`.

        Returns what is left to the next engine, for `go_on`. If its weights will be `stale`, nothing is.
        """
        if self._outputs is None:
            return []
        sent, crashes = self._sent(unsent), self._shared.crashes
        self._outputs.interrupt(sent, self._number, str(error))
        if stale:
            self.fail_all(error)
            return []
        found = self._resumption.sort(sent)
        for reader in found.guilty:
            self.fail([reader.request.request_id], crashes.error(reader, error) if crashes.most else error)
        self._tell_resumed(sum([self._move(reader) for reader in found.again]))
        return [name for name in sent if self.in_flight.get(name) is not None]

    def go_on(self, left: list[str], unsent: Iterable[ToEngine]) -> None:
        """Send to the next engine what the last one had, and what was never sent."""
        self._tell_resumed(len(left))
        held = self._resumption.held()
        for name in left:
            if name not in held:
                self._send_again(name)
        for message in unsent:
            self._send(message)
        # Also what was never sent need not wait where others live.
        self.move_waiting(begun=True)

    def _sent(self, unsent: list[ToEngine]) -> list[str]:
        """The requests that the engine has, given that these messages were never sent."""
        running = self.outputs.running()
        waiting = {running[name] for message in unsent for name in request_ids(message)} | self._resumption.held()
        return [name for name in self.in_flight.ids() if name not in waiting]

    def _tell_resumed(self, count: int) -> None:
        if count:
            logger.warning("%d requests of the engine that ended continue in another one", count)
            for resumed in self._shared.on_resume:
                resumed(count, self._number)

    def _move(self, reader: Any) -> bool:
        """Let another engine go on with a request, if it may and one lives."""
        refuge = self._shared.find_refuge(self._number, reader) if self._resumption.may_move(reader) else None
        if refuge is None:
            return False
        name = reader.request.request_id
        self._resumption.forget(reader)
        self.in_flight.release(name)
        refuge.adopt(reader, self.outputs.release(name), self._make_message)
        return True

    def move_waiting(self, *, begun: bool) -> None:
        """There is no engine here: let those that live have what waits for the next one.

        What an engine has had, and may bring tokens already, waits on unless it is to move as well (`begun`). What is
        tried one at a time stays.
        """
        if self._outputs is None:
            return
        held, children = self._resumption.held(), dict[str, list[str]]()
        for child, name in self._outputs.running().items():
            children.setdefault(name, []).append(child)
        for name in self.in_flight.ids():
            reader = self.in_flight[name]
            is_known = reader in self._shared.crashes
            if (begun or not is_known) and not (is_known and name in held) and self._move(reader):
                # It waits to be sent: this takes it back.
                self._send(Abort(children.get(name, [])))

    def stop_waiting(self, error: EngineError) -> None:
        """The next engine takes its time: who has nothing yet may try elsewhere, and the others are served."""
        self.move_waiting(begun=True)
        crashes = self._shared.crashes
        self.fail([name for name in self.in_flight.ids() if self.in_flight[name] not in crashes], error)

    def flee(self, error: EngineError) -> None:
        """There will be no other engine: move what may move, and end the rest with an error."""
        held = self._resumption.held()
        for name in self.in_flight.ids():
            if name in held or not self._move(self.in_flight[name]):
                self.fail([name], error)

    def try_next(self) -> None:
        """Let the next request go on that waits for its turn, if others are tried."""
        if self._resumption.is_trying and self._health.is_up:
            reader = self._resumption.next()
            if reader is not None:
                self._send_again(reader.request.request_id)

    def expected(self) -> dict[str, str]:
        """The engine's ids of all that it must have by now, and the ids of the requests that they belong to."""
        running = self.outputs.running()
        if self._resumption.is_trying:
            held = self._resumption.held()
            return {child: name for child, name in running.items() if name not in held}
        return running
