"""Fixtures and settings of all tests. Nothing here imports JAX: tests that need no device stay fast."""

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from importlib import metadata
from pathlib import Path

import pytest
from hypothesis import settings

from tests.order import is_slow, place_of
from tests.thinned import EVERY_CASE

# Before any test module imports jax or transformers, and inherited by every subprocess a test starts. Tests marked
# `device` run on whatever is there.
if "JAXLLM_TEST_ON_DEVICE" not in os.environ:
    os.environ["JAX_PLATFORMS"] = "cpu"
# Virtual devices, for what is split over several.
os.environ["JAX_NUM_CPU_DEVICES"] = "8"
# A float32 that an int or a bfloat16 turned into something else is a bug; this makes it an error.
os.environ["JAX_NUMPY_DTYPE_PROMOTION"] = "strict"
# XLA splits a program to compile it by several threads, which takes a quarter more processor time. Engines compile
# several programs at once anyway.
_XLA_FLAGS = ["--xla_cpu_parallel_codegen_split_count=1"]
# What compiles without options of its own, such as operations one by one and functions of tests, compiles in half the
# time: as `QUICK` of `tests/quick.py` does. Engines say themselves how they compile.
_XLA_FLAGS.append("--xla_backend_optimization_level=0")
if tuple(int(part) for part in metadata.version("jaxlib").split(".")[:3]) < (0, 11, 1):
    _XLA_FLAGS.append("--xla_cpu_use_fusion_emitters=false")
os.environ["XLA_FLAGS"] = " ".join([*os.environ.get("XLA_FLAGS", "").split(), *_XLA_FLAGS])
# For compiling to TPUs that are not there: ask no metadata server, and let the processes of pytest-xdist do so at once.
os.environ["TPU_SKIP_MDS_QUERY"] = "1"
os.environ["TPU_WORKER_HOSTNAMES"] = "localhost"
os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
# PyTorch's threads wait for each other in loops, which takes as long as what they compute of so small models.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Until they are collected: modules and tests stay, so going through them finds no garbage.
gc.disable()

# A shell that starts the tests in the background of a script lets them ignore Ctrl-C, which every process they start
# would inherit: in tests of it nothing would happen.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A loaded machine is not a bug: no time limit on single examples. Tests that need more examples say so.
settings.register_profile("jaxllm", deadline=None, max_examples=100 if EVERY_CASE else 50)
settings.load_profile("jaxllm")

YOUNG_OBJECTS = 10_000
"""So many new objects are there before a collection."""

ROOT = Path(__file__).resolve().parent.parent
WITHOUT_TORCH = ROOT / "tests" / "without_torch"

RunPython = Callable[..., subprocess.CompletedProcess[str]]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of slow files before any are chosen, and put the files that take long first."""
    for item in items:
        if is_slow(item.nodeid):
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: place_of(item.nodeid))


def pytest_collection_finish() -> None:
    """Let no later collection of garbage go through the modules and tests that are there now, which all stay."""
    forget_what_stays()
    # As engine processes do, see `jaxllm.engine.garbage`: tracing makes many objects that stay.
    gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """Collect the garbage of a file at its end, where what it left open is found, and never look at the rest again.

    A process of the tests keeps what JAX has traced: late in a run, one collection of it all takes seconds.
    """
    result = yield
    if nextitem is None or nextitem.path != item.path:
        forget_what_stays()
    return result


def forget_what_stays() -> None:
    """Collect garbage now, and let no later collection go through what is left."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def children_without_torch() -> Iterator[None]:
    """Python processes that tests start find no torch, as on the machines of users; the tests' own process does."""
    # Not when this file is imported: the processes of pytest-xdist inherit what is set then, and need torch.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(WITHOUT_TORCH), prepend=os.pathsep)
        yield


@pytest.fixture(scope="session")
def demo_folder() -> Path:
    """The folder of the trained model that ships with jaxllm."""
    return ROOT / "models" / "demo"


@pytest.fixture(scope="session")
def run_python() -> RunPython:
    """Run Python in a process of its own: `run_python("-c", code, env={...}, devices=8)`.

    For what depends on a fresh interpreter: what an import loads, exit codes, XLA flags. `devices` asks for that many
    virtual CPU devices, and `with_torch` lets the process find torch. The result has text `stdout`, `stderr` and the
    `returncode`.
    """

    def run(
        *arguments: str,
        env: Mapping[str, str] | None = None,
        devices: int | None = None,
        timeout: float = 300,
        with_torch: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **(env or {})}
        if env is not None and "PYTHONPATH" in env:
            environment["PYTHONPATH"] = os.pathsep.join([str(WITHOUT_TORCH), env["PYTHONPATH"]])
        if with_torch:
            paths = environment.get("PYTHONPATH", "").split(os.pathsep)
            environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path != str(WITHOUT_TORCH))
        if devices is not None:
            flags = environment.get("XLA_FLAGS", "")
            environment["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count={devices}".strip()
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    return run
