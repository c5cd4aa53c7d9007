"""Compiles all executables of an engine into a bundle."""

import hashlib
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax
import msgspec
from jax.experimental.compilation_cache import compilation_cache

from jaxllm.bundle.manifest import FILE as MANIFEST_FILE
from jaxllm.bundle.manifest import FORMAT, VERSION, Manifest, SavedFile, read_format
from jaxllm.bundle.portable import save
from jaxllm.errors import ConfigError
from jaxllm.progress import Progress, silent
from jaxllm.runtime.programs.executables import Executable, Executables
from jaxllm.runtime.programs.generation import all_keys, name_of
from jaxllm.runtime.programs.identity import engine_identity
from jaxllm.runtime.programs.spec import make_spec
from jaxllm.runtime.resolved import ResolvedConfig


def check_target(folder: Path) -> None:
    """Raise `ConfigError` unless a bundle may be written there: nothing is, or an older bundle or an empty folder."""
    if folder.is_dir():
        if any(folder.iterdir()) and read_format(folder) != FORMAT:
            raise ConfigError(f"--output {folder}: holds something that is not a bundle; it is left alone")
    elif folder.exists():
        raise ConfigError(f"--output {folder}: a file is there")


def write_bundle(resolved: ResolvedConfig, num_pages: int, folder: Path, progress: Progress = silent) -> Manifest:
    """Compile every executable for `num_pages` KV pages, and write them to `folder`, whole or not at all.

    Raises:
        ConfigError: `folder` holds something else, or cannot be written.
    """
    check_target(folder)
    spec, buckets = make_spec(resolved, num_pages)
    executables = Executables(spec, resolved.config.compile)
    keys = all_keys(buckets.all)
    with no_compilation_cache(), executables.compiling(buckets.all, progress):
        pass
    made = {name_of(key): executables.get(key) for key in keys}
    engine = engine_identity(resolved, spec, num_pages, executables.compiler_options)
    target = folder.resolve()
    temporary = target.parent / f".{target.name}.{secrets.token_hex(4)}"
    try:
        temporary.mkdir(parents=True)
        files = {name: _write(temporary, name, executable) for name, executable in made.items()}
        manifest = Manifest(
            format=FORMAT,
            version=VERSION,
            engine=engine,
            num_pages=num_pages,
            temporary_bytes=max(map(_beside_arguments, made.values())),
            executables=files,
        )
        (temporary / MANIFEST_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=1))
        _put_in_place(temporary, target)
    except OSError as error:
        raise ConfigError(f"--output {folder}: cannot be written: {error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return manifest


@contextmanager
def no_compilation_cache() -> Iterator[None]:
    """Really compile: on CPU, what comes out of JAX's persistent cache cannot be serialised again."""
    before = jax.config.values["jax_enable_compilation_cache"]
    _use_cache(False)
    try:
        yield
    finally:
        _use_cache(before)


def _use_cache(enabled: bool) -> None:
    jax.config.update("jax_enable_compilation_cache", enabled)
    # JAX decides once per process whether there is a cache.
    compilation_cache.reset_cache()


def _write(folder: Path, name: str, executable: Executable) -> SavedFile:
    data, call = save(executable)
    file = f"{name}.bin"
    (folder / file).write_bytes(data)
    return SavedFile(file=file, size=len(data), sha256=hashlib.sha256(data).hexdigest(), call=call)


def _beside_arguments(executable: Executable) -> int:
    """Bytes of temporaries and code on a device."""
    memory = executable.memory_analysis()
    return 0 if memory is None else int(memory.temp_size_in_bytes + memory.generated_code_size_in_bytes)


def _put_in_place(temporary: Path, target: Path) -> None:
    """Rename the finished folder; a bundle that is there already goes once it is out of the way."""
    old = temporary.with_name(temporary.name + ".old")
    if target.exists():
        target.rename(old)
    try:
        temporary.rename(target)
    except OSError:
        if old.exists():
            old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)
