"""The numbers that a row is sampled by: a declaration for each, of its name and of its value for a request.

To give the sampler another one, add it here and to `SamplingRows`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from jaxllm.requests.sampling_params import SamplingParams

_LIMITS = np.finfo(np.float32)
_LEAST, _MOST = float(_LIMITS.tiny), float(_LIMITS.max)


@dataclass(frozen=True)
class RowNumber:
    """A float32 of each row."""

    name: str
    neutral: float
    """The value that changes nothing; that of padding."""
    value: Callable[[SamplingParams], float]
    """The request's number, in the range of float32."""
    greedy_uses_it: bool = True
    """Whether it can change what a greedy request gets; if not, such requests have the neutral value."""

    def of(self, params: SamplingParams) -> float:
        """The value in the rows of a request."""
        return self.value(params) if self.greedy_uses_it or not params.greedy else self.neutral


ROW_NUMBERS: Final = (
    RowNumber("temperature", 0.0, lambda params: min(params.temperature, _MOST), greedy_uses_it=False),
    RowNumber("top_p", 1.0, lambda params: max(params.top_p, _LEAST), greedy_uses_it=False),
    RowNumber("min_p", 0.0, lambda params: params.min_p, greedy_uses_it=False),
    RowNumber("presence", 0.0, lambda params: params.presence_penalty),
    RowNumber("frequency", 0.0, lambda params: params.frequency_penalty),
    RowNumber("repetition", 1.0, lambda params: min(max(params.repetition_penalty, _LEAST), _MOST)),
)

FLOAT_FIELDS: Final = tuple(number.name for number in ROW_NUMBERS)
"""Rows of the packed float32 array."""

NEUTRAL_FLOATS: Final = np.array([[number.neutral] for number in ROW_NUMBERS], np.float32)
"""A column of it that changes nothing, [N, 1]."""
