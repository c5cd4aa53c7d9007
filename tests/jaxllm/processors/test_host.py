"""A processor on the host is told who comes and goes, and no more places are kept than there are requests."""

from typing import Any

import numpy as np

from jaxllm.config import EngineConfig
from jaxllm.processors.host import HostProcessor
from jaxllm.processors.interface import LogitsProcessor
from tests.e2e.driving import request


class Told(LogitsProcessor):
    """Writes down what it is told, and fails when it is told to."""

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:
        self.outputs: dict[int, list[int]] = {}
        self.sizes: list[int] = []
        self.fails = False

    def update_state(self, batch_update: Any) -> None:
        if self.fails:
            raise OSError("as asked")
        if batch_update is not None:
            for index in batch_update.removed:
                self.outputs.pop(index)
            for index, _, _, output in batch_update.added:
                self.outputs[index] = output

    def apply(self, logits: np.ndarray) -> np.ndarray:
        self.sizes.append(len(logits))
        for index, output in self.outputs.items():
            logits[index] += len(output)
        return logits


def test_requests_come_and_go() -> None:
    host = HostProcessor(Told, EngineConfig())
    told: Told = host._processor
    everyone = [request(name, [1]) for name in range(4)]

    def step(*which: int) -> list[str | None]:
        """Each gets its own row back, changed by the length of its output, which is its name."""
        logits = np.array([[10.0 * name] for name in which], np.float32)
        outputs = [np.arange(name, dtype=np.int32) for name in which]
        found, failed = host.apply([everyone[name] for name in which], outputs, logits.copy())
        if not failed:
            assert found.tolist() == [[11.0 * name] for name in which]
            assert sorted(map(len, told.outputs.values())) == sorted(which)
        return [failed.get(row) for row in range(len(which))]

    assert step(0, 1, 2, 3) == [None] * 4
    assert step(3, 1) == [None] * 2
    assert step(0, 3, 1) == [None] * 3
    host.forget(everyone[3])
    host.forget(everyone[1])
    assert step(0) == [None]
    assert told.sizes == [4, 4, 4, 1]
    assert step(0, 2) == [None] * 2
    host.forget(everyone[0])
    told.fails = True
    assert step(2, 1) == [f"logits processor {host.name} failed: OSError"] * 2
    told.fails = False
    host.forget(everyone[1])
    assert step(2) == [None]
    assert step(3, 0, 2) == [None] * 3
    assert told.sizes[-2:] == [2, 3]
