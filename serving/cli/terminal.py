"""Talking with a person at a terminal: reading lines, printing answers as they come, stopping on Ctrl-C."""

import sys
import time
import unicodedata
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import closing, suppress
from typing import Any

from jaxllm.errors import JaxLLMError, nearest

Command = Callable[[str], None]
"""The action of `/name TEXT`, called with the text."""


class Terminal:
    """Reads what a person types and runs it, until they leave.

    `answer` is called with every line that is no command. Its errors are printed in one line, and Ctrl-C ends it, not
    the program; Ctrl-C at the empty prompt, Ctrl-D and `/exit` do. Lines from a file are answered until one fails.
    """

    def __init__(self, answer: Callable[[str], None], commands: Mapping[str, tuple[str, Command]]) -> None:
        """`commands` maps names to a line of help and what they do; `/help` and `/exit` come by themselves."""
        self._answer = answer
        self._commands = {
            **commands,
            "help": ("this list", self._help),
            "exit": ("exit, like Ctrl-D", self._leave),
        }
        self._interactive = sys.stdin.isatty()
        self._left = False

    def run(self) -> None:
        """Read and answer until the person leaves."""
        if self._interactive:
            _edit_lines(self._commands)
        while not self._left:
            try:
                line = input("> " if self._interactive else "").strip()
            except EOFError:
                break
            except KeyboardInterrupt:
                if not _typed():
                    break
                say("")
                continue
            if line:
                self._take(line)
        if self._interactive:
            say("")

    def _take(self, line: str) -> None:
        try:
            if line.startswith("/"):
                self._command(line)
            else:
                self._answer(line)
        except JaxLLMError as error:
            if not self._interactive:
                raise
            say(f"error: {' '.join(str(error).split())}")

    def _command(self, line: str) -> None:
        name, _, text = line[1:].partition(" ")
        if name not in self._commands:
            say(f"unknown command /{name}{nearest(name, self._commands)} (/help lists them)")
            return
        self._commands[name][1](text.strip())

    def _help(self, _: str) -> None:
        width = max(map(len, self._commands))
        for name, (text, _command) in self._commands.items():
            say(f"  /{name:{width}}  {text}")
        say("  Ctrl-C stops an answer; at an empty prompt it exits.")

    def _leave(self, _: str) -> None:
        self._left = True


def show_answer(
    chunks: Generator[dict[str, Any]],
    text_of: Callable[[dict[str, Any]], str],
    aside_of: Callable[[dict[str, Any]], str] = lambda choice: "",
) -> str:
    """Print an answer as it comes, and how fast it came when somebody watches; returns its text.

    `text_of` takes the text out of a choice of OpenAI's chunks; `aside_of` takes what is no part of the answer, such as
    reasoning, and is shown, in a fainter colour, only to somebody who watches. Ctrl-C ends the answer, and the request
    with it.
    """
    watched = sys.stdout.isatty()
    parts: list[str] = []
    speed = _Speed()
    aside = _Aside() if watched else None
    try:
        # Closing, so that an interrupted answer is not computed to its end.
        with closing(chunks):
            for chunk in chunks:
                speed.count(chunk)
                for choice in chunk.get("choices") or ():
                    text = text_of(choice)
                    parts.append(text)
                    if aside is not None:
                        sys.stdout.write(aside.show(printable(aside_of(choice)), beside=bool(text)))
                    sys.stdout.write(printable(text) if watched else text)
                sys.stdout.flush()
    except KeyboardInterrupt:
        # At a terminal, the person goes on with something else; a script wants to end.
        if not sys.stdin.isatty():
            raise
        sys.stdout.write(" [stopped]")
    if aside is not None:
        sys.stdout.write(aside.show("", beside=True))
    sys.stdout.write("\n")
    sys.stdout.flush()
    if watched:
        say(speed.line())
    return "".join(parts)


def printable(text: str) -> str:
    """`text` without characters that would move the cursor or do worse to a terminal."""
    return "".join(each if each in "\n\t" or unicodedata.category(each) != "Cc" else "�" for each in text)


def say(text: str) -> None:
    """A line to the person, alongside the answers: on stderr."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


class _Aside:
    """Text in a fainter colour, with a line to itself."""

    def __init__(self) -> None:
        self._shown = False

    def show(self, text: str, *, beside: bool) -> str:
        """What to write for more of it; `beside`: it is over, for now."""
        before = "\x1b[2m" if text and not self._shown else ""
        self._shown = self._shown or bool(text)
        if not (beside and self._shown):
            return before + text
        self._shown = False
        return f"{before}{text}\x1b[0m\n"


class _Speed:
    """Times an answer."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._first: float | None = None
        self._usage: Mapping[str, int] = {}

    def count(self, chunk: Mapping[str, Any]) -> None:
        if self._first is None and chunk.get("choices"):
            self._first = time.monotonic() - self._start
        self._usage = chunk.get("usage") or self._usage

    def line(self) -> str:
        """`[21 prompt tokens, 40 tokens, first after 35 ms, 98.2 tokens/s]`, or less where less is known."""
        seconds = time.monotonic() - self._start
        parts = [] if self._first is None else [f"first token after {self._first * 1000:.0f} ms"]
        if self._usage:
            tokens = self._usage.get("completion_tokens", 0)
            parts.insert(0, f"{self._usage.get('prompt_tokens', 0)} prompt tokens, {tokens} tokens")
            parts.append(f"{tokens / max(seconds, 1e-9):.1f} tokens/s")
        return f"[{', '.join(parts)}]" if parts else "[nothing]"


def _edit_lines(commands: Iterable[str]) -> None:
    """Let `input` edit lines, remember them, and complete commands."""
    with suppress(ImportError):  # some systems have none: plain lines then
        import readline

        names = [f"/{name}" for name in commands]

        def complete(text: str, state: int) -> str | None:
            found = [name for name in names if name.startswith(text)] if text.startswith("/") else []
            return found[state] if state < len(found) else None

        readline.set_completer_delims(" ")
        readline.set_completer(complete)
        readline.parse_and_bind("tab: complete")


def _typed() -> str:
    """What stood on the line when it was interrupted."""
    readline = sys.modules.get("readline")
    return str(readline.get_line_buffer()) if readline is not None else ""
