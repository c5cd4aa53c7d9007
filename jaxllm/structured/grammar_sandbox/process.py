"""`python -m jaxllm.structured.grammar_sandbox.process`: tries grammars, each in a child made by `fork`.

Not for people: `jaxllm.structured.grammar_sandbox.client` starts it. It reads the vocabulary once; it has one
thread, so that its children are whole. It ends when its standard input does, and so with the process that started it.
"""

import contextlib
import gc
import os
import selectors
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from jaxllm.child import imports_done
from jaxllm.errors import RequestError
from jaxllm.structured.backend import Backend, Vocabulary, make_backend
from jaxllm.structured.grammar_sandbox.messages import (
    PONG,
    Begin,
    Cancel,
    Frames,
    Ping,
    ToCanary,
    Try,
    Verdict,
    framed,
    write_all,
)
from jaxllm.structured.grammar_sandbox.trial import attempt, limit, meaning, untried

NICE: Final = 5
"""Whoever waits for the tokens of a running request comes first."""


@dataclass
class Child:
    """A trial that runs, and what it has said."""

    number: int
    pid: int
    said: bytearray = field(default_factory=bytearray)


class Process:
    """The loop: forks a child for each grammar, and says what became of it."""

    def __init__(self, orders: int, answers: int) -> None:
        """Pipes to read messages from, and to write verdicts to."""
        self._orders, self._answers = orders, answers
        self._frames = Frames(orders)
        self._selector = selectors.DefaultSelector()
        self._selector.register(orders, selectors.EVENT_READ)
        self._children: dict[int, Child] = {}
        self._begin: Begin
        self._backend: Backend | RequestError
        self._open = True

    def run(self) -> None:
        """Until the pipe of orders ends."""
        while self._open:
            for key, _ in self._selector.select():
                if key.fd == self._orders:
                    self._open = self._frames.read(self._obey)
                else:
                    self._listen(key.fd)
        for child in self._children.values():
            os.kill(child.pid, signal.SIGKILL)

    def _obey(self, data: bytes) -> None:
        match msgspec.msgpack.decode(data, type=ToCanary):
            case Begin() as begin:
                self._begin = begin
                self._backend = _backend(begin)
                # Children share what is there now; a collection would copy it page by page.
                gc.collect()
                gc.freeze()
            case Try(number, form):
                self._try(number, form)
            case Ping():
                self._end_stopped()
                self._say(Verdict(number=PONG))
            case Cancel(number):
                for child in self._children.values():
                    if child.number == number:
                        os.kill(child.pid, signal.SIGKILL)

    def _end_stopped(self) -> None:
        """End children that somebody has stopped: their alarm clocks stand still, and others wait."""
        for child in self._children.values():
            if is_stopped(child.pid):
                os.kill(child.pid, signal.SIGKILL)

    def _try(self, number: int, form: bytes) -> None:
        if isinstance(self._backend, RequestError):
            self._say(Verdict(number=number, error=str(self._backend), parameter=self._backend.parameter))
            return
        pipe: tuple[int, ...] = ()
        try:
            pipe = os.pipe()
            pid = os.fork()
        except OSError as error:
            for end in pipe:
                os.close(end)
            self._say(msgspec.structs.replace(untried(str(error.strerror)), number=number))
            return
        read, write = pipe
        if pid == 0:
            self._be_child(self._backend, form, write)
        os.close(write)
        self._children[read] = Child(number, pid)
        self._selector.register(read, selectors.EVENT_READ)

    def _be_child(self, backend: Backend, form: bytes, write: int) -> None:
        """Does not return."""
        try:
            # Whoever waits for the end of these pipes must not wait for children.
            os.close(self._orders)
            os.close(self._answers)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            limit(self._begin.budget)
            verdict = attempt(backend, self._begin.vocab_size, form, self._begin.budget)
            write_all(write, msgspec.msgpack.encode(verdict))
        finally:
            os._exit(0)

    def _listen(self, descriptor: int) -> None:
        child = self._children[descriptor]
        data = os.read(descriptor, 1 << 16)
        child.said += data
        if data:
            return
        self._selector.unregister(descriptor)
        os.close(descriptor)
        del self._children[descriptor]
        _, status = os.waitpid(child.pid, 0)
        verdict = meaning(status, self._begin.budget)
        with contextlib.suppress(msgspec.DecodeError):
            verdict = msgspec.msgpack.decode(child.said, type=Verdict)
        self._say(msgspec.structs.replace(verdict, number=child.number))

    def _say(self, verdict: Verdict) -> None:
        write_all(self._answers, framed(verdict))


def is_stopped(pid: int) -> bool:
    """Whether a signal has stopped this child. One that has ended is not, and stays to be waited for."""
    # Asked about stops alone, the kernel fails with ECHILD for a child that has ended.
    state = os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT)
    return state is not None and state.si_code == os.CLD_STOPPED


def _backend(begin: Begin) -> Backend | RequestError:
    vocabulary = Vocabulary(Path(begin.folder), begin.vocab_size, begin.end_token_ids)
    try:
        return make_backend(begin.backend, vocabulary)
    except RequestError as error:
        return error


def main() -> None:
    """Serve the process that holds the other ends of standard input and output."""
    imports_done()
    # Ctrl-C in a terminal goes to a whole group of processes; this one ends with its parent.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.nice(NICE)
    answers = os.dup(1)
    # Whatever a library prints must not come between.
    os.dup2(2, 1)
    with contextlib.suppress(BrokenPipeError):
        Process(0, answers).run()


if __name__ == "__main__":
    main()
    os._exit(0)
