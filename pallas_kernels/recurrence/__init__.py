"""What recurrent layers have in common: states of rows in slots, steps of one token, and chunks of many."""

from jaxllm.pallas_kernels.recurrence.rows import StateRows
from jaxllm.pallas_kernels.recurrence.run import CHUNK, Recurrence, run_rows

__all__ = ["CHUNK", "Recurrence", "StateRows", "run_rows"]
