"""Linear recurrences whose channels each keep a number."""

from jaxllm.pallas_kernels.linear_recurrence.api import linear_recurrence
from jaxllm.pallas_kernels.linear_recurrence.inputs import LinearRecurrenceInputs

__all__ = ["LinearRecurrenceInputs", "linear_recurrence"]
