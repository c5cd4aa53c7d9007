"""Shared by recurrent operations: states of rows in slots, steps of one token, and chunks of many.

It is no operation itself. `api.py` has the signature of all of them, `run.py` the loop that runs one in XLA. The latter
is not imported here: every model needs to know `StateRows`, and few have such layers.
"""

from jaxllm.pallas_kernels.recurrence.api import LayerStates, RecurrentOperation
from jaxllm.pallas_kernels.recurrence.rows import DraftRows, StateRows

__all__ = ["DraftRows", "LayerStates", "RecurrentOperation", "StateRows"]
