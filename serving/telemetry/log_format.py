r"""The form of log lines, as text or as JSON. One record is one line, whoever wrote the texts in it.

Clients choose paths, names of models, request ids and much of what errors quote. A newline in one would forge a line,
and an escape sequence would command the terminal of whoever reads the log. Formatters escape them, so that no caller
can forget to.
"""

import logging
import re
import traceback
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

current_request_id: ContextVar[str | None] = ContextVar("current_request_id", default=None)
"""Set while a request is handled: every line logged meanwhile says which request it is about."""
current_trace_id: ContextVar[str | None] = ContextVar("current_trace_id", default=None)
"""Likewise the trace that the request is part of; None where it is not traced."""

MULTILINE: Final = {"multiline": True}
"""`extra=` of a record whose message is laid out in lines and has nothing of a client's."""

_OF_EVERY_RECORD = {
    *vars(logging.makeLogRecord({})),
    "message",
    "asctime",
    "color_message",
    "taskName",
    *MULTILINE,
}
# Control characters, line and paragraph separators, and what changes the direction of text. Surrogates are half a
# character, which no output takes.
_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e007f]"
)
_SHORT: Final = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}
_SECTIONS = re.compile(
    r"\s*(?:[|+ -]*)(?:Traceback \(most recent call last\):|Exception Group Traceback \(most recent call last\):"
    r"|The above exception was the direct cause of the following exception:"
    r"|During handling of the above exception, another exception occurred:)\s*"
)


def escaped(text: str) -> str:
    r"""The text on one line: `\n`, `\x1b` or `\u202e` in place of what is no visible character."""
    return text if text.isascii() and text.isprintable() else _UNPRINTABLE.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    character = found[0]
    number = ord(character)
    if character in _SHORT:
        return _SHORT[character]
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def _escape_in_json(found: re.Match[str]) -> str:
    number = ord(found[0])
    if number < 0x10000:
        return f"\\u{number:04x}"
    high, low = divmod(number - 0x10000, 0x400)
    return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"


def request_id_of(record: logging.LogRecord) -> str | None:
    """Which request a record is about, if any."""
    return getattr(record, "request_id", None) or current_request_id.get()


def trace_id_of(record: logging.LogRecord) -> str | None:
    """The trace of the request that a record is about, if any."""
    return getattr(record, "trace_id", None) or current_trace_id.get()


class TextFormatter(logging.Formatter):
    """`2026-01-31 12:00:00.000 INFO jaxllm.serving.server.server: message`, then the ids of request and trace.

    Tracebacks have lines of their own, all indented or in Python's fixed words.
    """

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self.default_msec_format = "%s.%03d"

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (the name is logging's)
        """The line without a traceback."""
        line, request_id = super().formatMessage(record), request_id_of(record)
        if request_id is not None and request_id not in line:
            line = f"{line} (request {request_id})"
        trace_id = trace_id_of(record)
        if trace_id is not None:
            line = f"{line} (trace {trace_id})"
        if getattr(record, "multiline", False):
            return "\n".join(map(escaped, line.split("\n")))
        return escaped(line)

    def formatException(self, ei: Any) -> str:  # noqa: N802 (the name is logging's)
        """The traceback, in which a message of several lines is one."""
        shown = traceback.TracebackException(*ei)
        waiting = [shown]
        while waiting:
            each = waiting.pop()
            # The lines of a note would be entries of their own.
            each.__notes__ = [escaped(str(note)) for note in each.__notes__ or ()]
            waiting += [inner for inner in (each.__cause__, each.__context__, *(each.exceptions or ())) if inner]
        return "\n".join(map(_traceback_entry, shown.format()))

    def formatStack(self, stack_info: str) -> str:  # noqa: N802 (the name is logging's)
        """A stack, which quotes source text alone."""
        return "\n".join(map(escaped, stack_info.split("\n")))


def _traceback_entry(entry: str) -> str:
    """One entry of a traceback: a frame, which quotes source text, keeps its lines; what an error says does not."""
    lines = entry.rstrip("\n").split("\n")
    if lines[0].lstrip(" |+-").startswith('File "') or _SECTIONS.fullmatch(entry):
        return "\n".join(map(escaped, lines))
    return escaped(entry.rstrip("\n"))


class JsonFormatter(logging.Formatter):
    """One JSON object: time (UTC), level, logger, message, then request_id, trace_id, exception and `extra` if any."""

    def format(self, record: logging.LogRecord) -> str:
        """The object as text on one line."""
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        fields: dict[str, Any] = {
            "time": moment.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": record.process,
            "message": record.getMessage(),
        }
        request_id = request_id_of(record)
        if request_id is not None:
            fields["request_id"] = request_id
        trace_id = trace_id_of(record)
        if trace_id is not None:
            fields["trace_id"] = trace_id
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        fields |= {key: value for key, value in vars(record).items() if key not in _OF_EVERY_RECORD | fields.keys()}
        # What is not Unicode, such as half of a surrogate pair out of somebody's JSON, must not cost the line.
        readable = {key: _readable(value) for key, value in fields.items()}
        # JSON escapes the ASCII ones itself, but for the last. Outside its texts there are none of the others.
        return _UNPRINTABLE.sub(_escape_in_json, msgspec.json.encode(readable, enc_hook=repr).decode())


def _readable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {_readable(str(key)): _readable(item) for key, item in value.items()}
    return [_readable(item) for item in value] if isinstance(value, (list, tuple)) else value
