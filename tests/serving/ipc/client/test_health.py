"""Silence counts only while an answer is owed, and only the time in which we could have heard one."""

import weakref
from contextlib import suppress

from jaxllm.errors import EngineError
from jaxllm.serving.ipc.client.health import EngineHealth, Heartbeat, come_back


def test_silence_counts_from_the_first_question() -> None:
    heartbeat = Heartbeat(1.0)
    heartbeat.tick(1.0)
    assert heartbeat.silence == 0.0
    heartbeat.expect()
    heartbeat.tick(0.5)
    heartbeat.expect()
    heartbeat.tick(0.25)
    assert heartbeat.silence == 0.75
    assert not heartbeat.hangs
    heartbeat.tick(0.5)
    assert heartbeat.hangs


def test_an_answer_ends_it_unless_more_is_owed() -> None:
    heartbeat = Heartbeat(10.0)
    heartbeat.expect()
    heartbeat.tick(0.5)
    heartbeat.heard(owed=True)
    assert heartbeat.silence == 0.0
    heartbeat.tick(0.5)
    assert heartbeat.silence == 0.5
    heartbeat.heard(owed=False)
    heartbeat.tick(0.5)
    assert heartbeat.silence == 0.0


def test_a_process_that_was_stopped_does_not_blame_the_engine() -> None:
    heartbeat = Heartbeat(10.0)
    heartbeat.expect()
    heartbeat.tick(3600.0)
    assert not heartbeat.hangs


def test_who_is_owed_nothing_any_more_counts_nothing() -> None:
    heartbeat = Heartbeat(10.0)
    heartbeat.expect()
    heartbeat.tick(0.5)
    heartbeat.settle(owed=True)
    assert heartbeat.silence == 0.5
    heartbeat.settle(owed=False)
    heartbeat.tick(0.5)
    assert heartbeat.silence == 0.0


class Body:
    """What a request has sent."""


def test_a_request_is_told_to_come_back() -> None:
    told = come_back(EngineError("the engine process died", 1.0))
    assert str(told) == "the engine process died; another one is starting: try again"
    assert told.retry_after == 1.0


async def test_an_error_that_many_requests_get_keeps_none_of_them() -> None:
    health = EngineHealth()
    health.suspend(EngineError("the engine process died"))
    bodies: list[weakref.ref[Body]] = []

    def ask() -> None:
        body = Body()
        bodies.append(weakref.ref(body))
        health.check_soon()

    for _ in range(3):
        with suppress(EngineError):
            ask()
    assert [body() for body in bodies] == [None] * 3
    assert health.down is not None
    assert health.down.__traceback__ is None
