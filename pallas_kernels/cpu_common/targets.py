"""Kernels by the names under which XLA calls them."""

import hashlib
import importlib.metadata
import logging
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from jaxllm.pallas_kernels.artifact_cache import ArtifactCache

if TYPE_CHECKING:
    from jaxllm.pallas_kernels.cpu_common.trampoline import Trampoline

logger = logging.getLogger(__name__)

LARGEST_CACHE = 64 * 2**20
"""Bytes that all object files may take together, some tens of kB each."""

_lock = threading.Lock()
_begun: "dict[str, Future[Trampoline]]" = {}
"""The targets that XLA knows for good: its table of call targets belongs to the process, and so does this one."""


@dataclass(frozen=True)
class Target:
    """A kernel as XLA calls it."""

    name: str
    build: Callable[[], bytes]
    """Makes the object file, for `Trampoline.open`. May import Numba."""
    sources: Path
    """Folder of what it is made from, alongside this one."""
    more_sources: tuple[Path, ...] = ()
    """Other such folders."""


def default_folder() -> Path:
    """Where object files lie if nobody says otherwise: where engines keep them, too."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jaxllm" / "xla" / "kernels"


def begin(targets: Iterable[Target], folder: Path | None) -> Callable[[], None]:
    """Have XLA know these kernels, so that it can compile what calls them; calling the result waits until they can run.

    What is not in `folder` is compiled, seconds each, and cached there unless it is None. Whoever can write to `folder`
    decides what this process runs.
    """
    from jaxllm.pallas_kernels.cpu_common.trampoline import Trampoline

    targets = list(targets)
    with _lock:
        new = [(target, Trampoline(target.name)) for target in targets if target.name not in _begun]
        pool = ThreadPoolExecutor(1, thread_name_prefix="kernels")
        for target, trampoline in new:
            _begun[target.name] = pool.submit(_open, trampoline, target, folder)
        pool.shutdown(wait=False)

    def wait() -> None:
        for target in targets:
            _begun[target.name].result()

    return wait


def provide(target: Target) -> None:
    """Have a kernel ready, unless somebody has already begun with it, who waits before anything calls it."""
    if target.name not in _begun:
        begin([target], default_folder())()


def _open(trampoline: "Trampoline", target: Target, folder: Path | None) -> "Trampoline":
    """Have calls passed on to the kernel."""
    name = f"{target.name}-{_digest(target.sources, *target.more_sources)}.o"
    artifacts = None if folder is None else ArtifactCache(folder, LARGEST_CACHE)
    # It must be whole: a damaged object file would end the process.
    cached = None if artifacts is None else artifacts.get(name)
    if cached is not None:
        trampoline.open(bytes(cached))
        return trampoline
    logger.info("compiling kernel %s for this CPU", target.name)
    code = target.build()
    if artifacts is not None:
        artifacts.put(name, code)
    trampoline.open(code)
    return trampoline


@cache
def _digest(*sources: Path) -> str:
    """The inputs on which an object file depends: the sources, what compiles them, and the processor."""
    import llvmlite.binding as llvm

    digest = hashlib.sha256()
    for source in sorted(path for folder in {Path(__file__).parent, *sources} for path in folder.glob("*.py")):
        digest.update(source.read_bytes())
    for package in ("numba", "llvmlite"):
        digest.update(importlib.metadata.version(package).encode())
    digest.update(f"{llvm.get_host_cpu_name()} {llvm.get_host_cpu_features().flatten()}".encode())
    return digest.hexdigest()[:20]
