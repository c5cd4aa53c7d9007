"""An adapter that is added to a model's weights while these are read, before they are packed and rounded."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxllm.models.adapters.adapter import Adapter, LowRank
from jaxllm.models.adapters.errors import AdapterError
from jaxllm.models.checkpoint.leaves import shown
from jaxllm.models.checkpoint.weight_target import Slots, Specs, WeightTarget

Key = tuple[Any, ...]


class MergedAdapter:
    """What an adapter changes in the tensors of a checkpoint, each in the rows of its target, added in float32."""

    def __init__(self, adapter: Adapter) -> None:
        """Raises `AdapterError` for an adapter that starts at an invocation: weights are the same for all tokens."""
        if adapter.config.invocation_tokens:
            raise AdapterError(f"{adapter.config.source}: 'alora_invocation_tokens' is set: it cannot be merged")
        self._source = adapter.config.source
        self._products = {_key(each.target): each for each in adapter.low_rank}
        self._replaced = {_key(each.target): each.values for each in adapter.replaced}
        self._rows = {(each.path, None, None, None): each for each in adapter.token_rows}
        self._biases: dict[Key, LowRank] = {
            ((*key[0][:-1], "bias"), *key[1:]): each for key, each in self._products.items() if each.bias is not None
        }

    @property
    def _all(self) -> tuple[Mapping[Key, Any], ...]:
        return self._products, self._replaced, self._rows, self._biases

    def check(self, slots: Slots, specs: Specs, *, is_tied: bool) -> None:
        """Raise `AdapterError` unless weights that are read into these slots can have all of it.

        Of quantized weights the sum would be rounded again. Where the output layer `is_tied` to the embedding, an
        adapter of one would change both.
        """
        known = {_key(target): target for targets in slots.values() for target in targets}
        for key in {key for each in self._all for key in each}:
            if key not in known:
                raise AdapterError(f"{self._source}: the model has no {shown(key[0])} of its own to merge with")
            if specs[key[0]].matrix is not None:
                raise AdapterError(
                    f"{self._source}: {shown(key[0])} is quantized; merge_lora needs a model that is not"
                )
            if is_tied and "embedding" in key[0]:
                raise AdapterError(
                    f"{self._source}: it changes the embedding, which is this model's output layer, too: they cannot "
                    "be merged"
                )

    def changes(self, target: WeightTarget) -> bool:
        """Whether a target has other values with the adapter."""
        return any(_key(target) in each for each in self._all)

    def merged(self, target: WeightTarget, values: np.ndarray) -> np.ndarray:
        """A target's values with the adapter in them, float32."""
        key, out = _key(target), np.array(values, np.float32)
        if (whole := self._replaced.get(key)) is not None:
            out = np.array(whole, np.float32).reshape(out.shape)
        if (rows := self._rows.get(key)) is not None:
            out[list(rows.indices)] = rows.values
        if (product := self._products.get(key)) is not None:
            out += (product.b.astype(np.float32) @ product.a.astype(np.float32)).reshape(out.shape)
            if product.magnitude is not None:
                length = np.linalg.norm(out, axis=-1)
                out *= (product.magnitude.reshape(length.shape) / np.where(length == 0, 1, length))[..., None]
        if (of_bias := self._biases.get(key)) is not None:
            assert of_bias.bias is not None
            out += of_bias.bias.reshape(out.shape)
        return out


def _key(target: WeightTarget) -> Key:
    """What is different for each target."""
    part = target.part
    return target.path, target.layer, None if part is None else part.name, None if part is None else part.expert
