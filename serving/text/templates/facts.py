"""Facts about a chat template's source."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TemplateFacts:
    """The expressions of a source; comments and the text that it writes are no part of them."""

    values: frozenset[str] = frozenset()
    """Texts with which it compares values: roles, types of parts."""
    fields: frozenset[str] = frozenset()
    """Names of the fields that it reads, or looks for."""
    reads_parts: bool = False
    """Whether it goes through a content, or takes one part of it."""
