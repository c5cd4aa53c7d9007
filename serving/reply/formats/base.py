"""The protocol of a format."""

from collections.abc import Mapping
from typing import Any, Protocol

from jaxllm.serving.reply.calls import Calls
from jaxllm.serving.reply.lark import Lark
from jaxllm.serving.reply.source import Parsing, Source


class ToolFormat(Protocol):
    """How a family of models writes calls of tools. Formats hold no state of a reply.

    A format may have `begins`: tags that begin calls and nothing else. A call that begins with one ends reasoning.
    """

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts with a meaning; where they are special tokens, they stay in the text for the parser."""

    @property
    def opening(self) -> str:
        """Comes before the first of the calls that are forced."""

    @property
    def separator(self) -> str:
        """Comes between them."""

    @property
    def closing(self) -> str:
        """Comes after the last."""

    @property
    def forces_reasoning(self) -> bool:
        """Whether the grammar of `call` has place for reasoning before it."""

    def parse(self, source: Source, calls: Calls) -> Parsing[None]:
        """Read a reply to its end. What is no call is content, to the last character.

        A marker of several tokens that the end of the text cuts short is left out.
        """

    def call(self, lark: Lark, name: str, schema: Mapping[str, Any]) -> str:
        """The grammar of a call of a function whose parameters have this JSON schema, as an expression."""

    def new_id(self) -> str:
        """An id for a call that the model gave none."""


class ReasoningFormat(Protocol):
    """How a family of models writes its reasoning. Formats hold no state of a reply."""

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts with a meaning; where they are special tokens, they stay in the text for the parser."""

    @property
    def end(self) -> str:
        """Ends reasoning; what comes after it is the answer."""

    @property
    def sections(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Texts that begin reasoning, and texts that end it, by which its tokens are counted."""

    @property
    def start(self) -> str:
        """The end of a prompt that makes a model reason; empty if it always does."""

    def begins_inside(self, prompt: str) -> bool | None:
        """Whether the model goes on inside reasoning after this prompt; None: it may begin with it."""

    def parse(self, source: Source, calls: Calls, *, inside: bool) -> Parsing[None]:
        """Read the reasoning, if there is any; the rest is for the tool's format.

        `inside`: the prompt has begun the reasoning.
        """
