"""Command-line flags made from options (`jaxllm.config`), and the parser that reads them."""

from jaxllm.flags.flag import Flag
from jaxllm.flags.parser import FlagParser
from jaxllm.flags.sections import (
    add_engine_flags,
    add_flags,
    add_section_flags,
    engine_flags,
    engine_sections,
    explicit_options,
    section_flags,
    summary,
)
from jaxllm.flags.values import integer, json_object

__all__ = [
    "Flag",
    "FlagParser",
    "add_engine_flags",
    "add_flags",
    "add_section_flags",
    "engine_flags",
    "engine_sections",
    "explicit_options",
    "integer",
    "json_object",
    "section_flags",
    "summary",
]
