"""Sections of options as flags, and back."""

import argparse
from typing import TypeVar

from jaxllm.config import Section
from jaxllm.flags import FlagParser, add_flags, explicit_options, section_flags, summary

S = TypeVar("S", bound=Section)


def add_section(parser: FlagParser, name: str, options: type[Section]) -> None:
    """Declare the flags of a section under its heading."""
    add_flags(parser, name, summary(options), section_flags(name, options))


def read_section(args: argparse.Namespace, options: type[S]) -> S:
    """The options that are given. Raises `ConfigError`."""
    flags = list(section_flags("", options))
    synonyms = {flag.name: flag.info.synonyms for flag in flags}
    given = explicit_options(args, flags)
    known = {
        name: synonyms[name].get(value, value) if isinstance(value, str) else value for name, value in given.items()
    }
    return options(**known)
