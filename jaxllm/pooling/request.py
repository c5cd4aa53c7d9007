"""A request to a pooling model as the engine sees it."""

from dataclasses import dataclass

import numpy as np

from jaxllm.pooling.params import PoolingParams
from jaxllm.requests.lora_request import LoRARequest
from jaxllm.requests.media import PromptMedia
from jaxllm.requests.owners import NOBODY, Owner


@dataclass(eq=False, slots=True, kw_only=True)
class PoolingRequest:
    """One text to be pooled.

    `prompt_token_ids` is int32 [length]. Tokens from position `second_text` on are of the second of two texts that are
    read together; None: there is one. `share`: the owner's index in `Shares` while the text waits. `adapter_slot` is
    where its adapter is on the devices; -1: it has none, or waits for it. `num_labels` are those of the classifier that
    the adapter brings along; None: the model's. `media` are its images, and `media_rows`
    int32 [rows] where these are in the pool on the devices, while they are needed.
    """

    request_id: str
    prompt_token_ids: np.ndarray
    params: PoolingParams
    priority: int = 0
    second_text: int | None = None
    owner: Owner = NOBODY
    lora_request: LoRARequest | None = None
    share: int = -1
    adapter_slot: int = -1
    num_labels: int | None = None
    media: PromptMedia | None = None
    media_rows: np.ndarray | None = None
