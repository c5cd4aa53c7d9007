"""A request to a pooling model as the engine sees it."""

from dataclasses import dataclass

import numpy as np

from jaxllm.pooling.params import PoolingParams
from jaxllm.requests.owners import NOBODY, Owner


@dataclass(eq=False, slots=True, kw_only=True)
class PoolingRequest:
    """One text to be pooled.

    `prompt_token_ids` is int32 [length]. Tokens from position `second_text` on are of the second of two texts that are
    read together; None: there is one. `share`: the owner's index in `Shares` while the text waits.
    """

    request_id: str
    prompt_token_ids: np.ndarray
    params: PoolingParams
    priority: int = 0
    second_text: int | None = None
    owner: Owner = NOBODY
    share: int = -1
