"""Grammars are compiled alongside the engine's loop, kept by their size, and not begun when nobody waits."""

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from jaxllm.requests.structured_outputs import StructuredOutputsParams
from jaxllm.structured import llguidance_backend
from jaxllm.structured.backend import Grammar, Matcher, mask_words
from jaxllm.structured.compiler import THREADS, GrammarCompiler
from tests.jaxllm.structured.grammar_sandbox.demo import demo_vocabulary

SECONDS = 60
MIB = 1 << 20


class Gated:
    """A backend that compiles when it is let."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.begun = threading.Semaphore(0)
        self.compiled: list[StructuredOutputsParams] = []

    def compile(self, form: StructuredOutputsParams) -> Grammar:
        self.begun.release()
        assert self.gate.wait(SECONDS)
        self.compiled.append(form)
        return object()  # type: ignore[return-value]

    def fill(self, matchers: Sequence[tuple[Matcher, int]], masks: npt.NDArray[Any]) -> list[str | None]:
        raise NotImplementedError


@pytest.fixture
def backend() -> Gated:
    return Gated()


@pytest.fixture
def compiler(backend: Gated) -> Iterator[GrammarCompiler]:
    made = GrammarCompiler(lambda: backend, most_kept=100, most_bytes=10 * MIB)
    yield made
    backend.gate.set()
    made.close()


def form(number: int) -> StructuredOutputsParams:
    return StructuredOutputsParams(choice=[str(number)])


def test_as_many_are_kept_as_fit(backend: Gated, compiler: GrammarCompiler) -> None:
    backend.gate.set()
    for number in range(4):
        compiler.compile(form(number), 3 * MIB).result(SECONDS)
    for number in (1, 2, 3):
        assert compiler.compile(form(number), 3 * MIB).done()
    assert len(backend.compiled) == 4
    compiler.compile(form(0), 3 * MIB).result(SECONDS)
    assert len(backend.compiled) == 5, "it was the oldest"
    compiler.compile(form(9), 30 * MIB).result(SECONDS)
    assert compiler.compile(form(9), 30 * MIB).done(), "the last one is kept, whatever its size"


def test_what_is_cancelled_does_not_begin(backend: Gated, compiler: GrammarCompiler) -> None:
    futures = [compiler.compile(form(number)) for number in range(THREADS + 3)]
    for _ in range(THREADS):
        assert backend.begun.acquire(timeout=SECONDS)
    for future in futures:
        compiler.cancel(future)
    backend.gate.set()
    again = compiler.compile(form(THREADS + 2))
    for future in (*futures[:THREADS], again):
        future.result(SECONDS)
    assert again is not futures[-1]
    compiled = sorted(each.choice or [] for each in backend.compiled)
    assert compiled == [[str(number)] for number in (*range(THREADS), THREADS + 2)]


def test_a_slow_mask_is_a_problem_of_its_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The canary and the limits of sources refuse all that we know of; this is for what we do not."""
    # By llguidance's own limits this one takes 0.2 s, and seldom more.
    monkeypatch.setattr(llguidance_backend, "SLOW_SECONDS", 0.02)
    backend = llguidance_backend.make_backend(demo_vocabulary())
    slow = backend.compile(StructuredOutputsParams(grammar="start: " + ' "a"?' * 3000)).matcher()
    quick = backend.compile(StructuredOutputsParams(choice=["yes", "no"])).matcher()
    masks = np.zeros((2, mask_words(1536)), np.int32)
    found: list[str | None] = [None, None]
    for _ in range(8):
        found = backend.fill([(slow, 0), (quick, 1)], masks)
        assert found[1] is None
        if found[0] is not None:
            break
        allowed = np.flatnonzero(np.unpackbits(masks[0].view(np.uint8), bitorder="little"))
        assert slow.take([int(allowed[-1])]) is None
    assert found[0] is not None
    assert "takes too long" in found[0]
