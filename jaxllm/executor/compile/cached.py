"""Executables that engines cache for their next start, which then neither traces nor compiles.

JAX's persistent cache spares the compiler but not what comes before it: to find an entry, a step must be traced and
lowered. Here an engine's executables lie in a folder named by a digest of what they depend on, known before tracing.

They are as much to be trusted as JAX's cache, beneath which they lie: machine code that whoever can write the folder
can change. Nothing is unpickled, and what is broken is compiled again.
"""

import hashlib
import json
import logging
import math
import os
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
from jax._src.config import persistent_cache_min_compile_time_secs
from jax.errors import JaxRuntimeError

from jaxllm.bundle.portable import DeviceAssignment, from_bytes, to_bytes
from jaxllm.errors import ConfigError
from jaxllm.executor.compile.compiler import compiler_of
from jaxllm.executor.compile.executables import Executables
from jaxllm.executor.compile.identity import engine_identity
from jaxllm.executor.compile.program import Executable, Program, ProgramSet
from jaxllm.executor.memory.capacity import devices_of
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.pallas_kernels.artifact_cache import ArtifactCache

logger = logging.getLogger(__name__)

LARGEST_CACHE = 4 * 2**30
"""Bytes that all engines' executables may take together."""

_FORMAT = 3
"""Version of the file format; another version uses other folders."""
_HIT = "/jax/compilation_cache/cache_hits"
_ENVIRONMENT = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
_NOT_IN_CODE = ("cache", "log", "dump", "traceback", "profiler", "coordination", "debug", "platform")
"""Parts of names of JAX's settings that change nothing of an executable. How the platform was chosen does not matter:
which one it is is part of `engine_identity`."""


class CachedExecutables:
    """The cached executables of one engine. Threads may make several at a time."""

    def __init__(self, cache: Path, engine: str, assignment: DeviceAssignment, *, rename: bool) -> None:
        """`engine` names the folder in `cache`.

        `rename`: programs are compiled under a name that JAX's own cache has never seen, see `of`.
        """
        self.folder = cache / engine
        self._artifacts = ArtifactCache(cache, LARGEST_CACHE)
        self._assignment = assignment
        self._rename = rename
        self._read_names: set[str] = set()

    @classmethod
    def of(
        cls, cache: Path, resolved: ResolvedConfig, programs: ProgramSet[Any], num_pages: int
    ) -> "CachedExecutables":
        """Those in `cache` of an engine of this configuration."""
        known = {**engine_identity(resolved, programs, num_pages), **_surroundings(), "format": _FORMAT}
        digest = hashlib.sha256(json.dumps(known, sort_keys=True, default=str).encode()).hexdigest()[:32]
        # What JAX found in its own cache must not be serialised again: on CPU the result may lack functions, which only
        # shows when it runs. There it is always compiled, the cheaper way; elsewhere JAX's cache remains of use when
        # code changes that the compiler does not see.
        assignment = DeviceAssignment(devices_of(resolved), resolved.mesh)
        return cls(cache, digest, assignment, rename=resolved.platform == "cpu")

    def __call__(self, name: str, program: Program, compile_it: Callable[[Program], Executable]) -> Executable:
        """The executable of a program: from the cache, or compiled and cached from now on."""
        found = self._read(name, program)
        if found is not None:
            self._read_names.add(name)
        else:
            # Under a new name JAX's cache would keep it where nobody finds it.
            unkept = persistent_cache_min_compile_time_secs(math.inf) if self._rename else nullcontext()
            with noticing_hits() as hits, unkept:
                found = compile_it(self._renamed(name, program))
            if not hits:
                self._write(name, found)
        return found

    def distrust(self) -> set[str]:
        """Delete what was read, because the runtime rejects some of it; returns its names."""
        # What JAX's own cache has of these programs is the same.
        self._rename = True
        names, self._read_names = self._read_names, set()
        for name in names:
            self._artifacts.discard(self._artifact(name), "the runtime rejects executables in this folder")
        return names

    def _renamed(self, name: str, program: Program) -> Program:
        if not self._rename:
            return program
        function = program.function

        def renamed(*arguments: Any) -> Any:
            return function(*arguments)

        renamed.__name__ = f"{name}_{secrets.token_hex(4)}"
        return replace(program, function=renamed)

    def _read(self, name: str, program: Program) -> Executable | None:
        artifact = self._artifact(name)
        content = self._artifacts.get(artifact)
        if content is None:
            return None
        try:
            with compiler_of(program.platform):
                return from_bytes(content, program.arguments, program.result, self._assignment)
        except (ValueError, TypeError, RuntimeError) as error:
            # Also whatever the runtime says to what it did not make itself.
            self._artifacts.discard(artifact, error)
            return None

    def _write(self, name: str, executable: Executable) -> None:
        try:
            content = to_bytes(executable)
        except (ConfigError, JaxRuntimeError) as error:
            logger.warning("executable %s cannot be cached for the next start: %s", name, error)
        else:
            self._artifacts.put(self._artifact(name), content)

    def _artifact(self, name: str) -> str:
        return f"{self.folder.name}/{name}.bin"


def cached_executables(
    resolved: ResolvedConfig, programs: ProgramSet[Any], num_pages: int, cache: Path | None
) -> Executables:
    """The executables of an engine, from `cache` if it has them; without one, all are compiled."""
    provider = None if cache is None else CachedExecutables.of(cache, resolved, programs, num_pages)
    return Executables(programs, resolved.config.compile, provider)


@contextmanager
def noticing_hits() -> Iterator[list[str]]:
    """Yields a list that is not empty once this thread has found something in JAX's cache."""
    hits: list[str] = []
    thread = threading.get_ident()

    def listen(event: str, **details: str | int) -> None:
        if event == _HIT and threading.get_ident() == thread:
            hits.append(event)

    jax.monitoring.register_event_listener(listen)
    try:
        yield hits
    finally:
        jax.monitoring.unregister_event_listener(listen)


def _surroundings() -> dict[str, Any]:
    """Settings of JAX and of compilers, which an engine's identity leaves to the operator of a bundle."""
    settings = {
        name: str(value) for name, value in jax.config.values.items() if not any(part in name for part in _NOT_IN_CODE)
    }
    environment = {name: os.environ.get(name, "") for name in _ENVIRONMENT}
    return {
        "settings": settings,
        **environment,
        "flax": metadata.version("flax"),
        "cores": os.cpu_count(),
        # In an engine of several processes, each has its own.
        **({"process": jax.process_index()} if jax.process_count() > 1 else {}),
    }
