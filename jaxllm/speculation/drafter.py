"""What makes drafts."""

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt

from jaxllm.requests.request import Request
from jaxllm.scheduler.table import RequestTable

Int32Array = npt.NDArray[np.int32]


class Drafter(Protocol):
    """Guesses at what follows the tokens of requests.

    It reads them where they are, in the arrays of a `RequestTable`. Nothing that it says changes any output.
    """

    def propose(self, table: RequestTable, slots: Int32Array, limits: Int32Array) -> tuple[Int32Array, Int32Array]:
        """Guesses for each of `slots` (int32 [n]), at most `limits`: how many, int32 [n], and these in a row."""
        ...

    def forget(self, request: Request) -> None:
        """A request has ended; its output is complete."""


def with_rows(counts: Int32Array, ids: Int32Array, rows: Mapping[int, Int32Array]) -> tuple[Int32Array, Int32Array]:
    """Drafts as `Drafter.propose` returns them, with those of some rows in place of what these had."""
    if not rows:
        return counts, ids
    own = np.split(ids, np.cumsum(counts)[:-1])
    own = [rows.get(row, drafts) for row, drafts in enumerate(own)]
    return np.array([len(drafts) for drafts in own], np.int32), np.concatenate(own).astype(np.int32)
