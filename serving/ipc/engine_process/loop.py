"""The loop that runs the steps: takes messages, computes, hands on the outputs."""

import logging
from collections.abc import Iterator
from queue import Empty
from typing import get_args

from jaxllm.adapters.control import ADAPTER_METHODS
from jaxllm.engine.engine import Engine
from jaxllm.engine.garbage import settle
from jaxllm.errors import RequestError, RequestFaultError
from jaxllm.pooling.engine import PoolingEngine
from jaxllm.pooling.request import PoolingRequest
from jaxllm.requests.outputs import EngineOutput
from jaxllm.requests.request import Request
from jaxllm.serving.ipc.engine_process.clients import Client, Clients, InputQueue
from jaxllm.serving.ipc.messages import (
    Abort,
    Add,
    AttachClient,
    Call,
    Called,
    CallResult,
    Configure,
    ControlMethod,
    DetachClient,
    Finish,
    Pool,
    Reconcile,
    Reconciled,
    ToEngine,
    UpdateWeights,
)

logger = logging.getLogger(__name__)

AnyEngine = Engine | PoolingEngine


def run(engine: AnyEngine, input_queue: InputQueue, clients: Clients) -> None:
    """Step while there is work, sleep while there is none, and return when the client is gone.

    Messages are taken between steps, so that an abort counts before the step after the running one is scheduled.
    """
    settle()
    if isinstance(engine, Engine) and engine.state().halted:
        clients.put_outputs([], engine.state())
    copies_again = 0.0
    while True:
        is_idle = not engine.has_unfinished_requests()
        if is_idle and isinstance(engine, Engine):
            copies_again, was_copying = engine.copy_while_idle(), copies_again > 0
            if was_copying and not copies_again:
                clients.put_outputs([], engine.state())
        for arrived in _arrived(input_queue, wait=is_idle, seconds=copies_again or None):
            if arrived is None:
                return
            client, message = arrived
            if client not in clients:
                continue
            left = clients.take(client, message)
            if left:
                engine.abort_request(left)
            if not isinstance(message, Exception):
                _obey(message, engine, client, clients)
        if engine.has_unfinished_requests():
            outputs = engine.step()
            clients.put_outputs(outputs, engine.stats())


def _arrived(
    input_queue: InputQueue, *, wait: bool, seconds: float | None = None
) -> Iterator[tuple[Client, ToEngine | Exception] | None]:
    """The messages that are here; with `wait`, at least one, unless none comes for so many seconds."""
    if wait:
        try:
            yield input_queue.get(timeout=seconds)
        except Empty:
            return
    while True:
        try:
            yield input_queue.get_nowait()
        except Empty:
            return


def _obey(message: ToEngine, engine: AnyEngine, client: Client, clients: Clients) -> None:
    match message:
        case Add():
            for request in message.requests():
                _add(request, engine, clients)
        case Pool():
            _add(message.request(), engine, clients)
        case Abort(request_ids):
            engine.abort_request(request_ids)
        case Finish(stopped):
            for request_id, stop in stopped:
                engine.finish_request(request_id, stop)
        case Reconcile():
            _reconcile(message, engine, client, clients)
        case Call() | UpdateWeights():
            called = _call(message, engine, clients)
            # After the state that all clients are told of.
            client.output_queue.put_behind(called)
        case AttachClient() if isinstance(engine, Engine) and engine.state().halted:
            # A client that hears nothing takes it that requests may come.
            clients.put_outputs([], engine.state())
        case AttachClient() | DetachClient():
            pass  # They are about clients alone.
        case Configure():
            raise AssertionError("the engine is configured once, before the loop")


def _call(message: Call | UpdateWeights, engine: AnyEngine, clients: Clients) -> Called:
    try:
        if isinstance(message, Call) and message.method not in get_args(ControlMethod):
            return Called(message.number, getattr(engine, message.method)())
        if isinstance(engine, PoolingEngine):
            if isinstance(message, Call) and message.method in ADAPTER_METHODS:
                return Called(message.number, getattr(engine.control, message.method)(**message.arguments))
            raise RequestError("a pooling engine cannot pause, sleep or update its weights")
        try:
            return Called(message.number, _control(message, engine, clients))
        finally:
            clients.put_outputs([], engine.state())
    except RequestError as error:
        return Called(message.number, refusal=str(error), parameter=error.parameter)


_LONG = ("sleep", "wake_up", "start_weight_update", "update_weights_from", "save_sharded_state")
"""Methods that read, copy or write weights."""


def _control(message: Call | UpdateWeights, engine: Engine, clients: Clients) -> CallResult:
    if isinstance(message, UpdateWeights):
        engine.control.update_weights([(each.name, each.array()) for each in message.weights])
        return None
    arguments = message.arguments
    if message.method in _LONG:
        # Reading and copying take long, and an engine that says nothing counts as one that hangs.
        arguments = {**arguments, "progress": clients.beat}
    found: CallResult = getattr(engine.control, message.method)(**arguments)
    return found


def _add(request: Request | PoolingRequest, engine: AnyEngine, clients: Clients) -> None:
    try:
        # The client knows from the engine's info which kind of request it takes.
        engine.add_request(request)  # type: ignore[arg-type]
    except RequestError as error:
        # The client checks with the same limits before it sends, so this is a bug. Nobody shall wait for it.
        logger.exception("the engine rejects request %s", request.request_id)
        refused = EngineOutput(
            request.request_id,
            [],
            finish_reason="abort",
            refusal=str(error),
            refused_parameter=error.parameter,
            is_fault=isinstance(error, RequestFaultError),
        )
        clients.put_outputs([refused], None)


def _reconcile(message: Reconcile, engine: AnyEngine, client: Client, clients: Clients) -> None:
    """End what the client does not know of, and tell it what the engine does not know of."""
    unfinished = engine.unfinished_ids()
    strays = clients.orphaned_ids(client, message.request_ids, unfinished)
    if strays:
        logger.error("ending %d requests that no client is waiting for: %s", len(strays), ", ".join(strays[:5]))
        engine.abort_request(strays)
    unknown = [name for name in message.request_ids if name not in unfinished and not engine.is_ending(name)]
    client.output_queue.put_behind(Reconciled(message.number, unknown))
