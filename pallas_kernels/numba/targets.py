"""The kernels by the names under which XLA calls them."""

import hashlib
import importlib.metadata
import logging
import os
import tempfile
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxllm.pallas_kernels.numba.calls import Kernel
    from jaxllm.pallas_kernels.numba.trampoline import Gateway

logger = logging.getLogger(__name__)

_MATMUL = "jaxllm_matmul_"
MATMUL_BYTES = {"float32": 4, "bfloat16": 2}
"""Types of weights that the kernel for products reads, and their bytes."""
_ATTENTION = "jaxllm_paged_attention_"
ATTENTION_BYTES = {"float32": 4, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1, "int8": 1}
"""Types of KV cache that the attention kernel reads, and their bytes."""

ZEROS = "jaxllm_zeros"
"""What makes arrays of zeros, see `zeros`."""

CHECKSUM_BYTES = 32
"""Of the SHA-256 before the code in a file."""

_lock = threading.Lock()
_begun: "dict[str, Future[Gateway]]" = {}
"""What XLA knows, and for good: its table of call targets belongs to the process, and so does this one."""


def matmul_target(dtype: str) -> str:
    """Name of the kernel for products with weights of a type (NumPy's name)."""
    return _MATMUL + dtype


def attention(dtype: str) -> str:
    """Name of the attention kernel for a cache of a type (NumPy's name)."""
    return _ATTENTION + dtype


def default_folder() -> Path:
    """Where object files lie if nobody says otherwise: where engines keep them, too."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jaxllm" / "xla" / "kernels"


def begin(names: Iterable[str], folder: Path | None) -> Callable[[], None]:
    """Have XLA know these kernels, so that it can compile what calls them; calling the result waits until they can run.

    What is not in `folder` is compiled, seconds each, and kept there unless it is None. Whoever can write to `folder`
    decides what this process runs.
    """
    from jaxllm.pallas_kernels.numba.trampoline import Gateway

    names = list(names)
    with _lock:
        new = {name: Gateway(name) for name in names if name not in _begun}
        pool = ThreadPoolExecutor(1, thread_name_prefix="kernels")
        for name, gateway in new.items():
            _begun[name] = pool.submit(_open, gateway, name, folder)
        pool.shutdown(wait=False)

    def wait() -> None:
        for name in names:
            _begun[name].result()

    return wait


def provide(names: Iterable[str], folder: Path | None) -> None:
    """Have these kernels ready, unless somebody has already begun with them, who waits before anything calls them."""
    new = [name for name in names if name not in _begun]
    begin(new, folder)()


def _open(gateway: "Gateway", name: str, folder: Path | None) -> "Gateway":
    """Open the gateway of a kernel."""
    path = None if folder is None else folder / f"{name}-{_digest()}.o"
    code = None if path is None else _kept(path)
    if code is None:
        code = _build(name)
        if path is not None:
            _keep(path, code)
    gateway.open(code)
    return gateway


def _build(name: str) -> bytes:
    if name == ZEROS:
        from jaxllm.pallas_kernels.numba.zeros import build_zeros

        return build_zeros()
    from jaxllm.pallas_kernels.numba.build import build

    logger.info("compiling the kernel %s for this processor", name)
    return build(_kernel(name))


def _kernel(name: str) -> "Kernel":
    if name.startswith(_MATMUL):
        from jaxllm.pallas_kernels.linear.cpu.matmul import make_kernel as make_matmul

        dtype = name.removeprefix(_MATMUL)
        return make_matmul(dtype, MATMUL_BYTES[dtype])
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
