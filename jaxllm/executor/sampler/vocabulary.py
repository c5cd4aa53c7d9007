"""Running what works on a part of the vocabulary on every device's part.

Sampling runs on each device for its part [R, V / devices] of the logits. What must be known of the whole is one number
per row, or per block of a row. Only the kernel for TPUs wants whole rows, and exchanges parts for them.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from jax.sharding import Mesh

from jaxllm.models.sharding import MODEL, model_parallel, over_model, partition
from jaxllm.pallas_kernels.sampling.vocabulary import WHOLE, Vocabulary


def over_vocabulary(
    function: Callable[..., Any], mesh: Mesh | None, in_specs: Any, out_specs: Any
) -> Callable[..., Any]:
    """`function(*arguments, vocabulary=...)` on every device's part; without a mesh, on the whole.

    The specs say which arguments and results are split along the vocabulary (`SPLIT`) and which are whole (`SAME`).
    """
    if mesh is None or model_parallel(mesh) == 1:
        return partial(function, vocabulary=WHOLE)
    on_part = partial(function, vocabulary=Vocabulary(MODEL))
    return over_model(on_part, mesh, in_specs, out_specs)


SPLIT, SAME = partition(None, "vocab"), partition()
