"""The state of a server is told where nobody else can ask for it, also when an engine does not answer."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from starlette.requests import Request

from jaxllm.engine.inspection import EngineSnapshot
from jaxllm.errors import EngineError
from jaxllm.serving.http.errors import HttpError
from jaxllm.serving.server import debug


class FakeEngine:
    """An engine that answers, hangs, or is lost when it is asked."""

    def __init__(self, number: int, behaviour: str) -> None:
        self.number, self.pid, self.num_queued_tokens = number, 100 + number, 7
        self.health = SimpleNamespace(is_up=behaviour != "absent")
        self.request_ids = [f"r-{number}"]
        self._behaviour = behaviour

    def __len__(self) -> int:
        return 1

    async def ask(self, make: Any) -> str:
        assert make(3).method == "debug_state"
        if self._behaviour == "hangs":
            await asyncio.Event().wait()
        if self._behaviour == "lost":
            raise EngineError("the engine ended")
        return msgspec.json.encode(EngineSnapshot(running=2, waiting=1, steps_in_flight=1)).decode()


def request_to(*behaviours: str, needs_key: bool = True, dev_mode: bool = False) -> Request:
    engines = [FakeEngine(number, each) for number, each in enumerate(behaviours)]
    group = SimpleNamespace(engines=engines, request_ids=[name for each in engines for name in each.request_ids])
    server = SimpleNamespace(
        access=SimpleNamespace(needs_key=needs_key),
        options=SimpleNamespace(server_dev_mode=dev_mode),
        llm=SimpleNamespace(engines=group),
        accepting=True,
    )
    app = SimpleNamespace(state=SimpleNamespace(server=server))
    return Request({
        "type": "http", "method": "GET", "path": "/debug/state", "headers": [], "query_string": b"", "app": app,
        "server": ("host", 80),
    })  # fmt: skip


async def test_every_engine_is_reported_whatever_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debug, "ANSWER_SECONDS", 0.05)
    answer = await debug.debug_state(request_to("answers", "hangs", "lost", "absent"))
    found = json.loads(bytes(answer.body))
    assert (found["accepting"], found["http_requests"]) == (True, 4)
    first, *others = found["engines"]
    assert (first["engine"], first["pid"], first["in_flight"], first["queued_tokens"]) == (0, 100, 1, 7)
    assert (first["state"]["running"], first["state"]["waiting"]) == (2, 1)
    assert [each["problem"] for each in others] == [
        "no answer within 0.05 s: a long step, or a hang",
        "the engine ended",
        "the engine is not there",
    ]


async def test_a_server_without_keys_tells_it_only_if_a_flag_allows_it() -> None:
    with pytest.raises(HttpError, match="start it with --api-key or --server-dev-mode"):
        await debug.debug_state(request_to("answers", needs_key=False))
    await debug.debug_state(request_to("answers", needs_key=False, dev_mode=True))
