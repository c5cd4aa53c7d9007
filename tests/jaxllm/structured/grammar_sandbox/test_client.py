"""A process that tries grammars: it may die, hang or be asked for too much, and nobody waits for nothing."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from contextlib import suppress

import psutil
import pytest

from jaxllm.errors import QueueFullError
from jaxllm.requests.structured_outputs import StructuredOutputsParams
from jaxllm.structured.grammar_sandbox.client import MOST_OF_ONE, Canary
from jaxllm.structured.grammar_sandbox.messages import Budget, Verdict
from tests.conftest import RunPython
from tests.jaxllm.structured.grammar_sandbox.demo import demo_canary

SECONDS = 60
"""After which something hangs."""


@pytest.fixture
def canary() -> Iterator[Canary]:
    made = demo_canary()
    yield made
    made.close()


def good(number: int) -> StructuredOutputsParams:
    return StructuredOutputsParams(choice=["yes", "no", str(number)])


def slow(number: int) -> StructuredOutputsParams:
    """One that takes a second and more, until its budget is used up: a text in which all of many things are to be."""
    parts = " & ".join(f"/(?s:.*)(x|y){{{each},}}(?s:.*)/" for each in range(40))
    return StructuredOutputsParams(grammar=f'start: T "{number}"\nT: {parts}\n')


def error_of(asked: Future[Verdict]) -> str | None:
    return asked.result(SECONDS).error


def processes(canary: Canary) -> list[psutil.Process]:
    """The trials that run."""
    assert canary.pid is not None
    return psutil.Process(canary.pid).children()


def test_verdicts_are_remembered(canary: Canary) -> None:
    assert canary.pid is None, "it is started when it is needed"
    wrong, right = StructuredOutputsParams(regex="(a"), good(0)
    assert error_of(canary.ask(right)) is None
    assert "unclosed group" in (error_of(canary.ask(wrong)) or "")
    assert canary.pid is not None
    # Nobody could answer anything new.
    os.kill(canary.pid, signal.SIGSTOP)
    for form in (wrong, right):
        assert canary.ask(form).done()
    assert canary.ask(right).result().size > 0
    assert not canary.ask(good(1)).done()


def test_it_is_restarted_when_it_dies(canary: Canary) -> None:
    """At any time: while it starts, while it tries, while nothing happens."""
    chosen = random.Random(0)
    for number in range(12):
        asked = [canary.ask(good(1000 * number + each)) for each in range(3)]
        time.sleep(chosen.uniform(0, 0.4))
        if (pid := canary.pid) is not None and psutil.pid_exists(pid):
            os.kill(pid, signal.SIGKILL)
        assert [error_of(each) for each in asked] == [None] * 3


def wait_for_process(canary: Canary) -> psutil.Process:
    """The process, which may be another one by now."""
    deadline = time.monotonic() + SECONDS
    while (pid := canary.pid) is None or not psutil.pid_exists(pid):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return psutil.Process(pid)


def test_innocent_grammars_wait_while_everything_is_killed(canary: Canary) -> None:
    """The process before it has started, or its children: so often that a fixed number of tries would not do."""
    asked = canary.ask(good(0))
    for _ in range(12):
        process = wait_for_process(canary)
        process.kill()
        process.wait(SECONDS)
    assert error_of(asked) is None
    asked, kills = canary.ask(slow(0)), 0
    while kills < 8:
        for child in wait_for_process(canary).children():
            with suppress(psutil.NoSuchProcess):
                child.kill()
                kills += 1
        time.sleep(0.005)
    assert not asked.done()
    assert "too complex" in (error_of(asked) or ""), "it is tried to the end once nobody kills"
    assert error_of(canary.ask(good(1))) is None


def test_a_process_that_cannot_live_is_given_up() -> None:
    canary = demo_canary(patience=1.0)
    try:
        asked = [canary.ask(good(number)) for number in range(20)]
        deadline = time.monotonic() + SECONDS
        while not all(each.done() for each in asked):
            assert time.monotonic() < deadline
            if canary.pid is not None and psutil.pid_exists(canary.pid):
                with suppress(ProcessLookupError):
                    os.kill(canary.pid, signal.SIGKILL)
            time.sleep(0.005)
        assert all(isinstance(each.exception(), QueueFullError) for each in asked)
        assert error_of(canary.ask(good(0))) is None
    finally:
        canary.close()


FULL = """
import resource
from tests.jaxllm.structured.grammar_sandbox.demo import demo_canary
from jaxllm.requests.structured_outputs import StructuredOutputsParams

def ask(text):
    return canary.ask(StructuredOutputsParams(choice=[text])).exception(60)

def limit(pid, most):
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (most, before[1]))
    return before[0]

canary = demo_canary(patience=1.0)
most = limit(0, 0)
canary.start()
print(ask("a"))
limit(0, most)
assert ask("a") is None
most = limit(canary.pid, 3)
print(ask("b"))
assert ask("a") is None, "what is known is known"
limit(canary.pid, most)
assert ask("b") is None
canary.close()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits of another process")
def test_a_system_that_has_nothing_to_give(run_python: RunPython) -> None:
    """Neither for the process nor for its children; limits of processes do not hold for root, those of files do."""
    done = run_python("-c", FULL)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "cannot start a process to check new grammars: Too many open files: try again later",
        "the grammar could not be checked: Too many open files: try again later",
    ]


def test_it_is_killed_when_it_hangs() -> None:
    canary = demo_canary(Budget(seconds=1.0))
    try:
        assert error_of(canary.ask(good(0))) is None
        assert canary.pid is not None
        os.kill(canary.pid, signal.SIGSTOP)
        assert error_of(canary.ask(good(1))) is None
    finally:
        canary.close()


def test_a_trial_that_nobody_waits_for_ends(canary: Canary) -> None:
    first, second, third = canary.ask(slow(1)), canary.ask(slow(1)), canary.ask(slow(2))
    waiting = canary.ask(good(3))
    deadline = time.monotonic() + SECONDS
    while canary.pid is None or len(processes(canary)) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    third.cancel()
    assert error_of(waiting) is None, "there is room for the next one"
    first.cancel()
    assert "too complex" in (error_of(second) or ""), "somebody else waits for it"
    assert not processes(canary)


def test_owners_take_turns(canary: Canary) -> None:
    asked = [canary.ask(slow(number), "greedy") for number in range(6)]
    modest = canary.ask(good(0), "modest")
    assert error_of(modest) is None
    assert sum(each.done() for each in asked) <= 3
    for each in asked:
        each.cancel()


def test_one_owner_cannot_fill_the_queue(canary: Canary) -> None:
    asked = [canary.ask(slow(number), "greedy") for number in range(MOST_OF_ONE + 2)]
    with pytest.raises(QueueFullError, match="waiting to be compiled"):
        canary.ask(slow(-1), "greedy")
    assert error_of(canary.ask(good(0), "modest")) is None
    for each in asked:
        each.cancel()


@pytest.mark.parametrize(
    ("budget", "said"),
    [
        (Budget(memory_bytes=16 << 20, processor_seconds=60), "memory"),
        (Budget(memory_bytes=8 << 30, processor_seconds=0.2), "CPU time"),
        (Budget(memory_bytes=8 << 30, processor_seconds=60, seconds=0.2), "took more than 0.2 s"),
        (Budget(compile_stack_bytes=1 << 18), "nested too deeply"),
    ],
)
def test_budgets(budget: Budget, said: str) -> None:
    chain = {str(number): {"$ref": f"#/$defs/{number + 1}"} for number in range(900)}
    deep = StructuredOutputsParams(json={"$defs": {**chain, "900": {}}, "$ref": "#/$defs/0"})
    canary = demo_canary(budget)
    try:
        form = deep if said == "nested too deeply" else slow(0)
        assert said in (error_of(canary.ask(form)) or "")
    finally:
        canary.close()


def test_closing_leaves_nobody_waiting(canary: Canary) -> None:
    asked = [canary.ask(slow(number)) for number in range(4)]
    canary.close()
    canary.close()
    done, late = wait_for(asked, SECONDS)
    assert not late
    assert all(isinstance(each.exception(), QueueFullError) for each in done)


PARENT = """
import sys, time
from tests.jaxllm.structured.grammar_sandbox.demo import demo_canary
from jaxllm.requests.structured_outputs import StructuredOutputsParams
canary = demo_canary()
canary.ask(StructuredOutputsParams(choice=["a"])).result()
print(canary.pid, flush=True)
time.sleep(600)
"""


def test_it_ends_with_whoever_started_it() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    canary = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.wait()
    parent.stdout.close()
    canary.wait(SECONDS)


def test_a_stopped_process_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxllm.structured.grammar_sandbox.link.PING_SECONDS", 0.05)
    canary = demo_canary()
    try:
        assert canary.ask(StructuredOutputsParams(choice=["a"])).result(60).error is None
        stopped = canary.pid
        assert stopped is not None
        os.kill(stopped, signal.SIGSTOP)
        assert canary.ask(StructuredOutputsParams(choice=["b"])).result(60).error is None
        assert canary.pid != stopped
    finally:
        canary.close()
