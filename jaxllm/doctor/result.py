"""The inputs and findings of a stage of the doctor, and the report of all stages."""

import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

Status = Literal["ok", "slow", "failed", "skipped"]


def ending(code: int) -> str:
    """How a process ended, from its exit code: the name of the signal, or the code."""
    if code >= 0:
        return f"ended with exit code {code}"
    known = {each.value: each.name for each in signal.Signals}
    return f"was ended by {known.get(-code, f'signal {-code}')}"


class Settings(msgspec.Struct, frozen=True):
    """The user's options. `seconds` is the timeout of a stage, `scratch` a folder that all stages share."""

    model: str = "demo"
    load_format: str = "auto"
    seconds: float = 120.0
    scratch: str = ""


class Outcome(msgspec.Struct, frozen=True):
    """The finding of a stage: one line, plain data for programs, and what to do about it."""

    summary: str
    figures: dict[str, Any] = {}
    status: Status = "ok"
    advice: str | None = None


class StageReport(msgspec.Struct, frozen=True):
    """One stage. Where it did not end well, `doing` is what it did last, and `log` the end of its standard error."""

    name: str
    status: Status
    seconds: float
    summary: str
    advice: str | None = None
    doing: str | None = None
    log: list[str] = []
    figures: dict[str, Any] = {}


class Report(msgspec.Struct, frozen=True):
    """All stages. `started` is a time of ISO 8601 in UTC; `ok` means that no stage failed."""

    jaxllm: str
    model: str
    started: str
    seconds: float
    ok: bool
    stages: list[StageReport]


@dataclass(frozen=True)
class Context:
    """The context of a stage, in its own process. `say` takes what it does next, which is named if it hangs."""

    settings: Settings
    say: Callable[[str], None]

    @property
    def scratch(self) -> Path:
        """A folder for files, which all stages share."""
        return Path(self.settings.scratch)
