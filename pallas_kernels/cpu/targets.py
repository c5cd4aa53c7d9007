"""The kernels by the names under which XLA calls them."""

import hashlib
import importlib.metadata
import logging
import os
import tempfile
import threading
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxllm.pallas_kernels.cpu.calls import Kernel
    from jaxllm.pallas_kernels.cpu.load import Loaded

logger = logging.getLogger(__name__)

MATMUL = "jaxllm_matmul"
_ATTENTION = "jaxllm_paged_attention_"
ATTENTION_BYTES = {"float32": 4, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1, "int8": 1}
"""Types of KV cache that the attention kernel reads, and their bytes."""

CHECKSUM_BYTES = 32
"""Of the SHA-256 before the code in a file."""

_lock = threading.Lock()
_loaded: "dict[str, Loaded]" = {}
"""What XLA knows, and for good: its table of call targets belongs to the process, and so does this one."""


def attention(dtype: str) -> str:
    """Name of the attention kernel for a cache of a type (NumPy's name)."""
    return _ATTENTION + dtype


def default_folder() -> Path:
    """Where object files lie if nobody says otherwise."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jaxllm" / "kernels"


def provide(names: Iterable[str], folder: Path | None) -> None:
    """Have XLA know these kernels. What is not in `folder` is compiled, seconds each, and kept there unless it is None.

    Whoever can write to `folder` decides what this process runs.
    """
    with _lock:
        for name in names:
            if name not in _loaded:
                _loaded[name] = _load(name, folder)


def _load(name: str, folder: Path | None) -> "Loaded":
    from jaxllm.pallas_kernels.cpu.load import load

    if folder is None:
        return load(name, _build(name))
    path = folder / f"{name}-{_digest()}.o"
    code = _kept(path)
    if code is None:
        code = _build(name)
        _keep(path, code)
    return load(name, code)


def _build(name: str) -> bytes:
    from jaxllm.pallas_kernels.cpu.build import build

    logger.info("compiling the kernel %s for this processor", name)
    return build(_kernel(name))


def _kernel(name: str) -> "Kernel":
    if name == MATMUL:
        from jaxllm.pallas_kernels.cpu.matmul import make_kernel as make_matmul

        return make_matmul()
    from jaxllm.pallas_kernels.paged_attention.cpu.kernel import make_kernel as make_attention

    dtype = name.removeprefix(_ATTENTION)
    return make_attention(dtype, ATTENTION_BYTES[dtype])


def _kept(path: Path) -> bytes | None:
    """The object file that was kept, if there is one and it is whole: a damaged one would end the process."""
    try:
        kept = path.read_bytes()
    except OSError:
        return None
    checksum, code = kept[:CHECKSUM_BYTES], kept[CHECKSUM_BYTES:]
    return code if hashlib.sha256(code).digest() == checksum else None


def _keep(path: Path, code: bytes) -> None:
    """Write the file whole or not at all, whoever else writes it at the same time."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(hashlib.sha256(code).digest() + code)
        Path(file.name).replace(path)
    except OSError as error:
        logger.warning("the kernel %s is not kept for the next start: %s", path.name, error)


@cache
def _digest() -> str:
    """What an object file depends on: the sources, what compiles them, and the processor."""
    import llvmlite.binding as llvm

    digest = hashlib.sha256()
    here = Path(__file__).parent
    for source in sorted((*here.glob("*.py"), *(here.parent / "paged_attention" / "cpu").glob("*.py"))):
        digest.update(source.read_bytes())
    for package in ("numba", "llvmlite"):
        digest.update(importlib.metadata.version(package).encode())
    digest.update(f"{llvm.get_host_cpu_name()} {llvm.get_host_cpu_features().flatten()}".encode())
    return digest.hexdigest()[:20]
