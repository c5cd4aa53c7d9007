"""`jaxllm bench sweep serve`: a load test for every setting, with its results in a folder."""

import csv
import json
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxllm.errors import ConfigError, EngineError, JaxLLMError
from jaxllm.serving.bench.sweep.options import SweepOptions
from jaxllm.serving.bench.sweep.parameters import Setting, are_linked
from jaxllm.serving.bench.sweep.server import SweepServer

SUMMARY = "summary.json"
WARMUP = "warmup.json"
METRICS = "ttft,tpot,itl,e2el"


@dataclass(frozen=True)
class Sweep:
    """The tests that the options ask for. `links` are as in `are_linked`.

    For each setting of servers a server is started, and tested with each setting of tests.
    """

    options: SweepOptions
    folder: Path
    servers: Sequence[Setting]
    tests: Sequence[Setting]
    links: Sequence[tuple[str, str]] = ()

    def run(self) -> list[dict[str, Any]]:
        """The results of all tests, which are also in the folder; those that it has already are not measured again.

        Raises `EngineError` for a server or a test that fails, unless `continue_on_error`.
        """
        found: list[dict[str, Any]] = []
        for server in self.servers:
            tests = [test for test in self.tests if are_linked(server, test, self.links)]
            try:
                found += self._with_server(server, tests)
            except JaxLLMError as error:
                self._note_failure(self._failure_of(server), error, server)
        if not self.options.dry_run:
            _write_table(self.folder / "summary.csv", found)
        return found

    def _with_server(self, setting: Setting, tests: Sequence[Setting]) -> list[dict[str, Any]]:
        """One server, and all its tests."""
        command = setting.applied_to(shlex.split(self.options.serve_cmd))
        done = all(self._summary_of(self._folder_of(setting, test)) is not None for test in tests)
        if self.options.dry_run:
            sys.stdout.write(f"server: {shlex.join(command)}\n")
        found: list[dict[str, Any]] = []
        if done or self.options.dry_run:
            for test in tests:
                found += self._runs(None, setting, test)
            return found
        self.folder.mkdir(parents=True, exist_ok=True)
        sys.stderr.write(f"server: {shlex.join(command)}\n")
        log = self.folder / f"SERVE-{setting.name or 'default'}.log"
        output = nullcontext(sys.stdout) if self.options.show_stdout else log.open("a", encoding="utf-8")
        with output as file, SweepServer(command, _url(command), file, self.options.server_ready_timeout) as server:
            self._failure_of(setting).unlink(missing_ok=True)
            for test in tests:
                # The last one was of another server.
                (self._folder_of(setting, test) / WARMUP).unlink(missing_ok=True)
                found += self._runs(server, setting, test)
        return found

    def _runs(self, server: SweepServer | None, setting: Setting, test: Setting) -> list[dict[str, Any]]:
        """The tests of one combination."""
        folder = self._folder_of(setting, test)
        before = self._summary_of(folder)
        if before is not None:
            return before
        if self.options.warmup_num_prompts:
            less = Setting({**test.flags, "num_prompts": self.options.warmup_num_prompts})
            self._run(server, setting, less, folder / WARMUP, -1)
        found = [
            self._run(server, setting, test, folder / f"run={number}.json", number)
            for number in range(self.options.num_runs)
        ]
        results = [each for each in found if each is not None]
        if results:
            summary = folder / SUMMARY
            part = summary.with_name(f"{SUMMARY}.part")
            part.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
            part.replace(summary)
        return results

    def _summary_of(self, folder: Path) -> list[dict[str, Any]] | None:
        """The results of all runs; None where some are missing, because they failed or were not asked for then."""
        summary = folder / SUMMARY
        found: list[dict[str, Any]] = _read(summary) if summary.exists() else []
        return found if len(found) >= self.options.num_runs else None

    def _run(
        self, server: SweepServer | None, setting: Setting, test: Setting, file: Path, number: int
    ) -> dict[str, Any] | None:
        """One test, unless its file is there; None where it failed, or where nothing is to be run."""
        more = ["--percentile-metrics", METRICS, "--save-result"]
        # Only a test that went well gives its file, by which it is known not to need another run.
        part = file.with_name(f"{file.name}.part")
        place = ["--result-dir", str(file.parent), "--result-filename", part.name]
        command = [*test.applied_to(shlex.split(self.options.bench_cmd)), *more, *place]
        if server is None:
            sys.stdout.write(f"  test: {shlex.join(command)}\n")
            return None
        failure = file.with_suffix(".failure.json")
        if not file.exists():
            part.unlink(missing_ok=True)
            try:
                sys.stderr.write(f"  test: {shlex.join(command)}\n")
                self._call(command)
                self._after(server)
            except EngineError as error:
                self._note_failure(failure, error, setting, test)
                return None
            result = {**_read(part), "run_number": number, **setting.flags, **test.flags}
            part.write_text(json.dumps(result) + "\n", encoding="utf-8")
            part.replace(file)
        failure.unlink(missing_ok=True)
        found: dict[str, Any] = _read(file)
        return found

    def _after(self, server: SweepServer) -> None:
        if self.options.after_bench_cmd:
            self._call(shlex.split(self.options.after_bench_cmd))
        else:
            server.forget_prefixes()

    def _call(self, command: Sequence[str]) -> None:
        """Run a command. Raises `EngineError` where it fails."""
        try:
            done = subprocess.run(
                command,
                stdout=None if self.options.show_stdout else subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
            )
        except OSError as error:
            raise EngineError(f"cannot run {command[0]}: {error}") from None
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no error message"])[-1]
            raise EngineError(f"{shlex.join(command[:4])} ... ended with code {done.returncode}: {reason[-500:]}")

    def _note_failure(self, file: Path, error: Exception, *settings: Setting) -> None:
        """Write it down and go on, or raise it."""
        if not self.options.continue_on_error:
            raise error
        sys.stderr.write(f"jaxllm: failed: {error}\n")
        file.parent.mkdir(parents=True, exist_ok=True)
        names = ("serve_overrides", "bench_overrides")
        overrides = {name: dict(each.flags) for name, each in zip(names, settings, strict=False)}
        text = json.dumps({"error_type": type(error).__name__, "error": str(error), **overrides}, indent=1)
        file.write_text(text + "\n", encoding="utf-8")

    def _failure_of(self, server: Setting) -> Path:
        return self.folder / f"SERVE-{server.name or 'default'}.failure.json"

    def _folder_of(self, server: Setting, test: Setting) -> Path:
        parts = [f"{kind}-{each.name}" for kind, each in (("SERVE", server), ("BENCH", test)) if each.name]
        return self.folder / ("-".join(parts) or "default")


def _url(command: Sequence[str]) -> str:
    """Where a server of this command listens."""
    host, port = _value_of(command, "--host") or "127.0.0.1", _value_of(command, "--port") or "8000"
    host = "127.0.0.1" if host in ("0.0.0.0", "::") else host
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _value_of(command: Sequence[str], flag: str) -> str | None:
    for index, word in enumerate(command):
        name, equals, value = word.partition("=")
        if name == flag:
            return value if equals else next(iter(command[index + 1 :]), None)
    return None


def _read(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {file}: {error}") from None


def _write_table(file: Path, results: Iterable[Mapping[str, Any]]) -> None:
    """All results as CSV, a row each; lists and objects are left out."""
    rows = [{name: value for name, value in each.items() if not isinstance(value, (list, dict))} for each in results]
    names = list(dict.fromkeys(name for row in rows for name in row))
    if not rows:
        return
    with file.open("w", encoding="utf-8", newline="") as out:
        writer = csv.DictWriter(out, names)
        writer.writeheader()
        writer.writerows(rows)
