"""Traces of what the device and the host do, begun and ended while the engine runs."""

from pathlib import Path

import jax

from jaxllm.errors import RequestError


class Profiler:
    """Takes one trace after the other with `jax.profiler`, into a folder of the operator's."""

    def __init__(self, folder: str | None) -> None:
        """Without a folder there are no traces."""
        self._folder = folder
        self._is_running = False

    def start(self) -> str:
        """Begin a trace, and return the folder. Raises `RequestError` without a folder, or while one is taken."""
        if self._folder is None:
            raise RequestError("profiling is off: start with profiler_dir (--profiler-dir FOLDER)")
        if self._is_running:
            raise RequestError("a trace is being taken already: stop it first")
        try:
            Path(self._folder).mkdir(parents=True, exist_ok=True)
            jax.profiler.start_trace(self._folder)
        except (OSError, RuntimeError) as error:
            raise RequestError(f"the trace could not be started in {self._folder}: {error}") from error
        self._is_running = True
        return self._folder

    def stop(self) -> str:
        """Write the trace, and return the folder. Raises `RequestError` where none was begun, or the disk is full."""
        if self._folder is None or not self._is_running:
            raise RequestError("no trace is being taken: start one first")
        self._is_running = False
        try:
            jax.profiler.stop_trace()
        except (OSError, RuntimeError) as error:
            raise RequestError(f"the trace could not be written to {self._folder}: {error}") from error
        return self._folder
