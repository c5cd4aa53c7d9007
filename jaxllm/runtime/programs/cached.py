"""Executables that engines keep for their next start, which then neither traces nor compiles.

JAX's persistent cache spares the compiler but not what comes before it: to find an entry, a step must be traced and
lowered. Here an engine's executables lie in a folder named by a digest of what they depend on, known before tracing.

They are as much to be trusted as JAX's cache, beneath which they lie: machine code that whoever can write the folder
can change. Nothing is unpickled, and what is broken is compiled anew.
"""

import hashlib
import json
import logging
import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import msgspec
from jax.errors import JaxRuntimeError

from jaxllm.bundle.portable import DeviceAssignment, SavedCall, load, save
from jaxllm.errors import ConfigError
from jaxllm.runtime.memory.capacity import devices_of
from jaxllm.runtime.programs.executables import Executable
from jaxllm.runtime.programs.generation import Recipe, Spec
from jaxllm.runtime.programs.identity import engine_identity
from jaxllm.runtime.resolved import ResolvedConfig

logger = logging.getLogger(__name__)

LARGEST_CACHE = 4 * 2**30
"""Bytes that all engines' executables may take together; those used longest ago go first."""

_MAGIC = b"jaxllm executable 2\n"
_CHECKSUM = hashlib.sha256().digest_size
_LENGTH = 8
_HIT = "/jax/compilation_cache/cache_hits"
_ENVIRONMENT = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
_NOT_IN_CODE = ("cache", "log", "dump", "traceback", "profiler", "coordination", "debug", "platform")
"""Parts of names of JAX's settings that change nothing of an executable. How the platform was chosen does not matter:
which one it is is part of `engine_identity`."""


class KeptExecutables:
    """The executables of one engine in one folder. Threads may make several at a time."""

    def __init__(self, folder: Path, assignment: DeviceAssignment, *, rename: bool) -> None:
        """`rename`: functions are compiled under a name that JAX's own cache has never seen, see `of`."""
        self.folder = folder
        self._assignment = assignment
        self._rename = rename

    @classmethod
    def of(
        cls, cache: Path, resolved: ResolvedConfig, spec: Spec, num_pages: int, compiler_options: Mapping[str, Any]
    ) -> "KeptExecutables":
        """The folder in `cache` for an engine of this configuration."""
        known = {
            **engine_identity(resolved, spec, num_pages, compiler_options),
            **_surroundings(),
            "format": str(_MAGIC),
        }
        digest = hashlib.sha256(json.dumps(known, sort_keys=True, default=str).encode()).hexdigest()[:32]
        # What JAX found in its own cache must not be serialised again: on CPU the result may lack functions, which only
        # shows when it runs. There it is always compiled, the cheaper way; elsewhere JAX's cache remains of use when
        # code changes that the compiler does not see.
        return cls(
            cache / digest, DeviceAssignment(devices_of(resolved), resolved.mesh), rename=resolved.platform == "cpu"
        )

    def __call__(self, name: str, recipe: Recipe, compile_it: Callable[[Recipe], Executable]) -> Executable:
        """The executable `name`: as kept, or compiled from `recipe` and kept from now on."""
        found = self._read(name, recipe)
        if found is None:
            with _noticing_hits() as hits:
                found = compile_it(self._named(name, recipe))
            if not hits:
                self._write(name, found)
        return found

    def _named(self, name: str, recipe: Recipe) -> Recipe:
        if not self._rename:
            return recipe
        function = recipe.function

        def renamed(*arguments: Any) -> Any:
            return function(*arguments)

        renamed.__name__ = f"{name}_{secrets.token_hex(4)}"
        return replace(recipe, function=renamed)

    def _read(self, name: str, recipe: Recipe) -> Executable | None:
        path = self._path(name)
        try:
            call, data = _unpack(path.read_bytes())
            made = load(data, call, recipe, self._assignment)
            # When it was used last.
            os.utime(self.folder)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, ConfigError) as error:
            logger.warning("%s cannot be used and is compiled anew: %s", path, error)
            return None
        return made

    def _write(self, name: str, executable: Executable) -> None:
        """Keep an executable if possible: an engine that cannot is only slower to start."""
        path = self._path(name)
        temporary = path.with_suffix(f".{secrets.token_hex(4)}")
        try:
            data, call = save(executable)
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            temporary.write_bytes(_pack(call, data))
            temporary.replace(path)
        except (OSError, ConfigError, JaxRuntimeError) as error:
            with suppress(OSError):
                temporary.unlink()
            logger.warning("executable %s is not kept for the next start: %s", name, error)

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.bin"


@contextmanager
def _noticing_hits() -> Iterator[list[str]]:
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


def prune(cache: Path, largest: int = LARGEST_CACHE) -> None:
    """Remove the executables of engines that were started longest ago until all take at most `largest` bytes."""
    folders = []
    for folder in cache.glob("*/"):
        try:
            size = sum(file.stat().st_size for file in folder.iterdir())
            folders.append((folder.stat().st_mtime, size, folder))
        except OSError:
            # Another process is removing it, or writing to it.
            logger.debug("skipped %s", folder)
    total = sum(size for _, size, _ in folders)
    for used, size, folder in sorted(folders):
        # A start that is under way keeps its folder.
        if total <= largest or time.time() - used < 3600:
            break
        shutil.rmtree(folder, ignore_errors=True)
        total -= size


def _surroundings() -> dict[str, Any]:
    """What an engine's identity leaves to the operator of a bundle: settings of JAX and of compilers."""
    settings = {
        name: str(value) for name, value in jax.config.values.items() if not any(part in name for part in _NOT_IN_CODE)
    }
    environment = {name: os.environ.get(name, "") for name in _ENVIRONMENT}
    return {"settings": settings, **environment, "flax": metadata.version("flax"), "cores": os.cpu_count()}


def _pack(call: SavedCall, data: bytes) -> bytes:
    header = msgspec.json.encode(call)
    body = len(header).to_bytes(_LENGTH, "little") + header + data
    return _MAGIC + hashlib.sha256(body).digest() + body


def _unpack(content: bytes) -> tuple[SavedCall, bytes]:
    """Raises `ValueError` for anything but what `_pack` made."""
    start = len(_MAGIC) + _CHECKSUM
    body = memoryview(content)[start:]
    if not content.startswith(_MAGIC) or hashlib.sha256(body).digest() != content[len(_MAGIC) : start]:
        raise ValueError("broken, or of another version")
    end = _LENGTH + int.from_bytes(body[:_LENGTH], "little")
    return msgspec.json.decode(body[_LENGTH:end], type=SavedCall), bytes(body[end:])
