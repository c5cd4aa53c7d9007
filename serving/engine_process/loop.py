"""The loop that runs the steps: takes messages, computes, hands on the outputs."""

import logging
from collections.abc import Iterator
from queue import Empty, SimpleQueue

from jaxllm.engine import Engine
from jaxllm.errors import RequestError
from jaxllm.outputs import EngineOutput
from jaxllm.pooling.engine import PoolingEngine
from jaxllm.pooling.request import PoolingRequest
from jaxllm.request import Request
from jaxllm.serving.engine_process.messages import (
    Abort,
    Add,
    Configure,
    Finish,
    Ping,
    Pong,
    Pool,
    Reply,
    ResetPrefixCache,
    ToEngine,
)
from jaxllm.serving.engine_process.outbox import Outbox
from jaxllm.serving.garbage import settle

logger = logging.getLogger(__name__)

AnyEngine = Engine | PoolingEngine

Inbox = SimpleQueue[ToEngine | None]
"""Messages to the engine; None: the client is gone."""


def run(engine: AnyEngine, inbox: Inbox, outbox: Outbox) -> None:
    """Step while there is work, sleep while there is none, and return when the client is gone.

    Messages are taken between steps, so that an abort counts before the step after the running one is scheduled.
    """
    settle()
    while True:
        for message in _arrived(inbox, wait=not engine.has_unfinished_requests()):
            if message is None:
                return
            _obey(message, engine, outbox)
        if engine.has_unfinished_requests():
            outputs = engine.step()
            outbox.put_outputs(outputs, engine.stats())


def _arrived(inbox: Inbox, *, wait: bool) -> Iterator[ToEngine | None]:
    """The messages that are here; with `wait`, at least one."""
    if wait:
        yield inbox.get()
    while True:
        try:
            yield inbox.get_nowait()
        except Empty:
            return


def _obey(message: ToEngine, engine: AnyEngine, outbox: Outbox) -> None:
    match message:
        case Add():
            for request in message.requests():
                _add(request, engine, outbox)
        case Pool():
            _add(message.request(), engine, outbox)
        case Abort(request_ids):
            engine.abort_request(request_ids)
        case Finish(stopped):
            for request_id, stop in stopped:
                engine.finish_request(request_id, stop)
        case Ping():
            outbox.put(Pong())
        case ResetPrefixCache(number):
            outbox.put(Reply(number, engine.reset_prefix_cache()))
        case Configure():
            raise AssertionError("the engine is configured once, before the loop")


def _add(request: Request | PoolingRequest, engine: AnyEngine, outbox: Outbox) -> None:
    try:
        # The client knows from the engine's info which kind of request it takes.
        engine.add_request(request)  # type: ignore[arg-type]
    except RequestError as error:
        # The client checks with the same limits before it sends, so this is a bug. Nobody shall wait for it.
        logger.exception("the engine refuses request %s", request.request_id)
        refused = EngineOutput(
            request.request_id, [], finish_reason="abort", refusal=str(error), refused_parameter=error.parameter
        )
        outbox.put_outputs([refused], None)
