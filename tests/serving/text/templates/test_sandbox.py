"""Templates of requests are rendered by processes, which may die of them."""

import signal
import threading
import time
from collections.abc import Iterator

import psutil
import pytest

from jaxllm.errors import QueueFullError, RequestError
from jaxllm.serving.text.templates import sandbox as module
from jaxllm.serving.text.templates.budget import TemplateLimitError
from jaxllm.serving.text.templates.rendering import Conversation
from jaxllm.serving.text.templates.sandbox import TemplateSandbox

TALK = Conversation(messages=[{"role": "user", "content": "hi 🙂\ud83d"}], variables={"huge": 2**100})
LOOP = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


@pytest.fixture
def sandbox() -> Iterator[TemplateSandbox]:
    made = TemplateSandbox()
    yield made
    made.close()


def processes() -> list[psutil.Process]:
    return [each for each in psutil.Process().children() if module.MODULE in each.cmdline()]


def test_templates_are_rendered_by_one_process_after_another(
    sandbox: TemplateSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sandbox.apply("{{ messages[0].content }} {{ huge }}", TALK) == f"hi 🙂\ud83d {2**100}"
    (first,) = processes()
    with pytest.raises(RequestError, match="no such role"):
        sandbox.apply("{{ raise_exception('no such role') }}", TALK)
    with pytest.raises(TemplateLimitError, match=r"iterates over more than|CPU time"):
        sandbox.apply(LOOP, TALK)
    assert processes() == [first]
    monkeypatch.setattr(module, "SECONDS", 0.05)
    with pytest.raises(TemplateLimitError, match="too much time or memory and was stopped"):
        sandbox.apply(LOOP, TALK)
    monkeypatch.setattr(module, "SECONDS", 30.0)
    assert sandbox.apply("x", TALK) == "x"
    assert processes() != [first]


def test_the_process_has_no_keys_and_no_files(sandbox: TemplateSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXLLM_API_KEY", "secret")
    sandbox.apply("x", TALK)
    (process,) = processes()
    assert "JAXLLM_API_KEY" not in process.environ()
    assert process.rlimit(psutil.RLIMIT_FSIZE) == (0, 0)


def test_a_process_that_is_stopped_is_given_up(sandbox: TemplateSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox.apply("x", TALK)
    (first,) = processes()
    first.send_signal(signal.SIGSTOP)
    monkeypatch.setattr(module, "SECONDS", 0.2)
    with pytest.raises(RequestError, match="was stopped"):
        sandbox.apply("x" * 1_000_000, TALK)
    monkeypatch.setattr(module, "SECONDS", 30.0)
    assert sandbox.apply("x", TALK) == "x"


def test_closing_ends_what_runs(sandbox: TemplateSandbox) -> None:
    errors: list[Exception] = []

    def render() -> None:
        try:
            sandbox.apply(LOOP, TALK)
        except (RequestError, QueueFullError) as error:
            errors.append(error)

    thread = threading.Thread(target=render)
    thread.start()
    while not processes():
        time.sleep(0.01)
    sandbox.close()
    thread.join(timeout=30)
    assert [type(error) for error in errors] == [QueueFullError]
    assert not processes()
    with pytest.raises(QueueFullError, match="shutting down"):
        sandbox.apply("x", TALK)
