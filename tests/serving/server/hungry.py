"""A logits processor that takes memory: `vllm_xargs={"eat": PATH}`, unless the file is there already."""

import time
from pathlib import Path
from typing import Any

import numpy as np

from jaxllm.processors.interface import BatchUpdate, LogitsProcessor, process_dict_updates
from jaxllm.requests.sampling_params import SamplingParams

GIB = 1.6
"""More than the engine of the test may have, whatever else it has."""
SECONDS_PER_STEP = 0.03
"""The text lasts until the server has looked at the memory."""


class Hungry(LogitsProcessor):
    """Changes no logits."""

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:
        super().__init__(vllm_config, device, is_pin_memory)
        self.eaten: dict[int, Any] = {}

    def uses(self, params: SamplingParams) -> bool:
        return "eat" in (params.extra_args or {})

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        def eat(params: SamplingParams, prompt: list[int] | None, output: list[int]) -> Any:
            file = Path((params.extra_args or {})["eat"])
            if file.exists():
                return 0
            file.touch()
            return np.ones(int(GIB * 2**30), np.uint8)

        process_dict_updates(self.eaten, batch_update, eat)

    def apply(self, logits: np.ndarray) -> np.ndarray:
        if any(isinstance(each, np.ndarray) for each in self.eaten.values()):
            time.sleep(SECONDS_PER_STEP)
        return logits
