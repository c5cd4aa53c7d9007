"""Silence counts only while an answer is owed."""

from jaxllm.serving.clients.heartbeat import Heartbeat


def test_silence_counts_from_the_first_question() -> None:
    heartbeat = Heartbeat(10.0)
    assert heartbeat.silence(100.0) == 0.0
    heartbeat.expect(100.0)
    heartbeat.expect(103.0)
    assert heartbeat.silence(104.0) == 4.0


def test_an_answer_ends_it_unless_more_is_owed() -> None:
    heartbeat = Heartbeat(10.0)
    heartbeat.expect(100.0)
    heartbeat.heard(105.0, busy=True)
    assert heartbeat.silence(107.0) == 2.0
    heartbeat.heard(108.0, busy=False)
    assert heartbeat.silence(200.0) == 0.0
