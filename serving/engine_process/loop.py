"""The loop that runs the steps: takes messages, computes, hands on the outputs."""

import logging
from collections.abc import Iterator
from queue import Empty

from jaxllm.engine import Engine
from jaxllm.errors import RequestError
from jaxllm.garbage import settle
from jaxllm.outputs import EngineOutput
from jaxllm.pooling.engine import PoolingEngine
from jaxllm.pooling.request import PoolingRequest
from jaxllm.request import Request
from jaxllm.serving.engine_process.clients import Client, Clients, Inbox
from jaxllm.serving.engine_process.messages import (
    Abort,
    Add,
    Attach,
    Configure,
    Finish,
    Ping,
    Pong,
    Pool,
    Reply,
    ResetPrefixCache,
    ToEngine,
)

logger = logging.getLogger(__name__)

AnyEngine = Engine | PoolingEngine


def run(engine: AnyEngine, inbox: Inbox, clients: Clients) -> None:
    """Step while there is work, sleep while there is none, and return when the client is gone.

    Messages are taken between steps, so that an abort counts before the step after the running one is scheduled.
    """
    settle()
    while True:
        for arrived in _arrived(inbox, wait=not engine.has_unfinished_requests()):
            if arrived is None:
                return
            client, message = arrived
            clients.notice(client, message)
            _obey(message, engine, client, clients)
        if engine.has_unfinished_requests():
            outputs = engine.step()
            clients.put_outputs(outputs, engine.stats())


def _arrived(inbox: Inbox, *, wait: bool) -> Iterator[tuple[Client, ToEngine] | None]:
    """The messages that are here; with `wait`, at least one."""
    if wait:
        yield inbox.get()
    while True:
        try:
            yield inbox.get_nowait()
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
        case Ping():
            client.outbox.put(Pong())
        case ResetPrefixCache(number):
            client.outbox.put(Reply(number, engine.reset_prefix_cache()))
        case Attach():
            pass  # It is about clients alone.
        case Configure():
            raise AssertionError("the engine is configured once, before the loop")


def _add(request: Request | PoolingRequest, engine: AnyEngine, clients: Clients) -> None:
    try:
        # The client knows from the engine's info which kind of request it takes.
        engine.add_request(request)  # type: ignore[arg-type]
    except RequestError as error:
        # The client checks with the same limits before it sends, so this is a bug. Nobody shall wait for it.
        logger.exception("the engine refuses request %s", request.request_id)
        refused = EngineOutput(
            request.request_id, [], finish_reason="abort", refusal=str(error), refused_parameter=error.parameter
        )
        clients.put_outputs([refused], None)
