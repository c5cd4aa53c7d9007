"""The percentiles that vLLM's offline benchmarks report."""

from collections.abc import Sequence

import numpy as np

PERCENTILES = (10, 25, 50, 75, 90, 99)


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """The percentiles by their number, which JSON has as text."""
    return {str(each): float(np.percentile(values, each)) for each in PERCENTILES}
