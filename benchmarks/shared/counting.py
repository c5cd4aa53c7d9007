"""Counts what a step does that no machine changes: calls of executables, arrays and bytes moved, Python functions."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

import jax
import numpy as np

import jaxllm
from jaxllm.executor.compile.executables import Executables

PACKAGE = Path(jaxllm.__file__).resolve().parent
FOLDERS = tuple(str(folder.resolve()) for folder in (PACKAGE, *(path for path in PACKAGE.iterdir() if path.is_dir())))
"""The package, and the folders that links in it name."""


@contextmanager
def counting_transfers() -> Iterator[Counter[str]]:
    """Count executables called and arrays moved during the block, by what they are.

    To the device go NumPy arrays and scalars that executables are called with; to the host comes what is asked for with
    `jax.device_get`. The compiled functions themselves are as they are.
    """
    counts: Counter[str] = Counter()
    get, device_get = Executables.get, jax.device_get

    def counted(executables: Executables, name: str) -> Callable[..., Any]:
        executable = get(executables, name)

        def call(*arguments: Any) -> Any:
            sent = [leaf for leaf in jax.tree.leaves(arguments) if isinstance(leaf, (np.ndarray, np.generic))]
            counts["executables called"] += 1
            counts["arrays to the device"] += len(sent)
            counts["bytes to the device"] += sum(leaf.nbytes for leaf in sent)
            return executable(*arguments)

        return call

    def brought(arrays: Any) -> Any:
        leaves = jax.tree.leaves(arrays)
        counts["arrays to the host"] += len(leaves)
        counts["bytes to the host"] += sum(leaf.nbytes for leaf in leaves)
        return device_get(arrays)

    with patch.object(Executables, "get", counted), patch.object(jax, "device_get", brought):
        yield counts


@contextmanager
def counting_calls() -> Iterator[Counter[str]]:
    """Count calls of jaxllm's own functions on this thread, by name.

    Those of libraries differ from version to version; so do comprehensions, which newer Pythons inline.
    """
    counts: Counter[str] = Counter()

    def notice(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and not code.co_name.startswith("<") and code.co_filename.startswith(FOLDERS):
            counts[code.co_qualname] += 1

    before = sys.getprofile()
    sys.setprofile(notice)
    try:
        yield counts
    finally:
        sys.setprofile(before)
