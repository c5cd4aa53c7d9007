"""Runs each stage in a process of its own, ends those that hang, and puts the report together."""

import datetime as dt
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import msgspec

from jaxllm.doctor.result import Outcome, Report, Settings, StageReport, ending
from jaxllm.doctor.stages import STAGES, Stage

LOG_LINES = 30
"""Lines of a child's standard error that a report keeps."""

Listener = Callable[[str, str | StageReport], None]
"""Told the name of a stage, and what it does now or its report."""


def run_doctor(version: str, settings: Settings, stages: Sequence[Stage], listen: Listener) -> Report:
    """Run the stages one after the other; `listen` hears of progress. `version` is jaxllm's."""
    started, begin = dt.datetime.now(dt.UTC), time.monotonic()
    reports: list[StageReport] = []
    with tempfile.TemporaryDirectory(prefix="jaxllm-doctor-") as scratch:
        told = msgspec.structs.replace(settings, scratch=scratch)
        for stage in stages:
            dead = any(report.name == "devices" and report.status == "failed" for report in reports)
            if dead and stage.needs_devices:
                report = StageReport(stage.name, "skipped", 0.0, "JAX has no working device (see the devices stage)")
            else:
                report = run_stage(stage, told, listen)
            reports.append(report)
            listen(stage.name, report)
    return Report(
        jaxllm=version,
        model=settings.model,
        started=started.isoformat(timespec="seconds"),
        seconds=round(time.monotonic() - begin, 1),
        ok=all(report.status != "failed" for report in reports),
        stages=reports,
    )


def run_stage(stage: Stage, settings: Settings, listen: Listener) -> StageReport:
    """Run one stage to its end, or end it at its timeout."""
    begin = time.monotonic()
    with tempfile.TemporaryFile() as log:
        child = _Child(stage, settings, log, listen)
        code = child.wait(settings.seconds)
        seconds, tail = round(time.monotonic() - begin, 1), _tail(log)
    outcome = child.outcome
    if outcome is not None and code == 0:
        has_failed = outcome.status == "failed"
        return StageReport(
            stage.name,
            outcome.status,
            seconds,
            outcome.summary,
            outcome.advice or (stage.advice if has_failed else None),
            log=tail if has_failed else [],
            figures=outcome.figures,
        )
    end = f"did not end within {settings.seconds:g} s" if code is None else _last_error(code, tail)
    at = f" during: {child.doing}" if child.doing else ""
    return StageReport(stage.name, "failed", seconds, f"{end}{at}", stage.advice, child.doing, tail)


class _Child:
    """The process of a stage, and what it has said so far."""

    def __init__(self, stage: Stage, settings: Settings, log: IO[bytes], listen: Listener) -> None:
        self.doing: str | None = None
        self.outcome: Outcome | None = None
        self._name, self._listen = stage.name, listen
        # A group of its own, so that whatever it starts ends with it.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "jaxllm.doctor.child", stage.module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment(os.environ),
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self._process.stdin is not None
        with suppress(BrokenPipeError), self._process.stdin as stdin:
            stdin.write(msgspec.json.encode(settings))

    def wait(self, seconds: float) -> int | None:
        """The exit code; None when it had to be ended."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            # The whole group, also after a crash or Ctrl-C: nothing may go on holding the device.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._reader.join(5)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            # The last line may be half a line of a process that was ended.
            for line in filter(lambda line: line.endswith(b"\n"), lines):
                message: dict[str, Any] = msgspec.json.decode(line)
                if "doing" in message:
                    self.doing = message["doing"]
                    self._listen(self._name, str(self.doing))
                else:
                    self.outcome = msgspec.convert(message["outcome"], Outcome)


def environment(given: Mapping[str, str]) -> dict[str, str]:
    """The environment of a stage: a CPU backend alongside the accelerator, as the reference, and no memory set
    aside.
    """
    found = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", **given}
    platforms = given.get("JAX_PLATFORMS", "")
    if platforms and "cpu" not in platforms.split(","):
        found["JAX_PLATFORMS"] = f"{platforms},cpu"
    return found


def _last_error(code: int, tail: Sequence[str]) -> str:
    """The error that Python printed last, where it lived to print one."""
    last = next((line for line in reversed(tail) if line.strip()), None) if code > 0 else None
    return last or ending(code)


def _tail(log: IO[bytes]) -> list[str]:
    log.seek(0)
    lines = log.read().decode(errors="replace").splitlines()
    return lines[-LOG_LINES:]


def named(names: Sequence[str]) -> tuple[Stage, ...]:
    """The stages of these names, in the usual order; all of them where there are no names."""
    return tuple(stage for stage in STAGES if not names or stage.name in names)


def write_report(report: Report, path: Path) -> None:
    """Write the report as JSON. Raises `OSError`."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
