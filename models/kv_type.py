"""The type in which keys and values are cached, and where the scales of an 8-bit one come from."""

from dataclasses import dataclass
from typing import Literal

KV_DTYPES = {"fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2"}
"""NumPy's names of types that have another name as an option."""

SCALE_BYTES = 4
"""A dynamic scale is a float32."""


@dataclass(frozen=True)
class KVCacheType:
    """`dtype` is NumPy's name of an array type; `scales` are factors that make keys and values of stored numbers.

    'none' is 1, 'checkpoint' one for the keys and one for the values of a layer, 'dynamic' one for each token and head,
    which lies in the page alongside what it scales.
    """

    dtype: str
    scales: Literal["none", "checkpoint", "dynamic"] = "none"

    @property
    def is_dynamic(self) -> bool:
        """Whether scales lie in pages."""
        return self.scales == "dynamic"
