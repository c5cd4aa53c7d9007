"""What recurrent layers have in common: states of rows in slots, steps of one token, and chunks of many.

`run.py` runs them. It is not imported here: every model needs to know `StateRows`, and few have such layers.
"""

from jaxllm.pallas_kernels.recurrence.rows import StateRows

__all__ = ["StateRows"]
