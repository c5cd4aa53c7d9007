"""An engine's executables out of a bundle, or the reason why not."""

from pathlib import Path

from jaxllm.bundle.manifest import Manifest, read_file, read_manifest
from jaxllm.bundle.portable import DeviceAssignment, load
from jaxllm.errors import CapacityError, ConfigError
from jaxllm.runtime.memory.capacity import bytes_on_device, count_pages, devices_of
from jaxllm.runtime.memory.memory import CPU_SHARE, cpu_free_bytes
from jaxllm.runtime.programs.buckets import Buckets
from jaxllm.runtime.programs.executables import Executable, Executables
from jaxllm.runtime.programs.generation import Recipe, StepSpec, all_keys, name_of
from jaxllm.runtime.programs.identity import differences, engine_identity
from jaxllm.runtime.resolved import ResolvedConfig


class Bundle:
    """A bundle whose manifest has been read. Nothing of it runs until `executables`, which checks it first."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest

    @classmethod
    def open(cls, folder: str) -> "Bundle":
        """Read the manifest. Raises `ConfigError` when there is none, or it is broken, or of another version."""
        path = Path(folder)
        return cls(path, read_manifest(path))

    def executables(self, resolved: ResolvedConfig, spec: StepSpec, buckets: Buckets) -> Executables:
        """The executables of an engine of this configuration; each is loaded when it is first asked for.

        Raises:
            ConfigError: the bundle was made for another engine (the message names every difference), or is corrupt.
            CapacityError: the memory that there is does not hold what the bundle was made for.
        """
        self._check(resolved, spec, buckets)
        _check_memory(resolved, spec, self.manifest.temporary_bytes)
        contents = {
            name: (read_file(self.folder, saved), saved.call) for name, saved in self.manifest.executables.items()
        }
        assignment = DeviceAssignment(devices_of(resolved), resolved.mesh)

        def make(name: str, recipe: Recipe) -> Executable:
            # Each is needed once, so that its bytes may go.
            data, call = contents.pop(name)
            try:
                return load(data, call, recipe, assignment)
            except ConfigError as error:
                raise ConfigError(f"executables={self.folder}: {error}") from error

        return Executables(spec, resolved.config.compile, make)

    def _check(self, resolved: ResolvedConfig, spec: StepSpec, buckets: Buckets) -> None:
        options = Executables(spec, resolved.config.compile).compiler_options
        ours = engine_identity(resolved, spec, _explicit_pages(resolved) or self.manifest.num_pages, options)
        found = differences(self.manifest.engine, ours)
        if found:
            raise ConfigError(
                f"executables={self.folder}: this bundle is for another engine: {'; '.join(found)}. Give the options "
                f"it was made with, compile it anew (`jaxllm compile`), or start without it"
            )
        missing = sorted({name_of(key) for key in all_keys(buckets.all)} - set(self.manifest.executables))
        if missing:
            raise ConfigError(f"executables={self.folder}: incomplete, it lacks {', '.join(missing)}; compile it anew")


def _explicit_pages(resolved: ResolvedConfig) -> int | None:
    """The number of KV pages that an option asks for, if one does."""
    cache = resolved.config.cache
    if cache.num_gpu_blocks_override is None and cache.kv_cache_memory_bytes is None:
        return None
    return count_pages(resolved, free_bytes=0)


def _check_memory(resolved: ResolvedConfig, spec: StepSpec, temporary_bytes: int) -> None:
    """Raise `CapacityError` unless weights, state and temporaries fit: the bundle's KV cache was sized elsewhere."""
    needed = temporary_bytes + bytes_on_device((spec.parameters, spec.state))
    if resolved.platform == "cpu":
        free = int(cpu_free_bytes(1.0) / CPU_SHARE)
    else:
        stats = devices_of(resolved)[0].memory_stats() or {}
        free = stats.get("bytes_limit", needed) - stats.get("bytes_in_use", 0)
    if needed > free:
        cache = bytes_on_device(spec.state.kv_cache)
        raise CapacityError(
            f"executables={resolved.config.compile.executables}: they need {needed / 2**30:.2f} GiB of memory, "
            f"{cache / 2**30:.2f} GiB of it for the KV cache, and {free / 2**30:.2f} GiB are free; compile them anew "
            f"with a smaller kv_cache_memory_bytes"
        )
