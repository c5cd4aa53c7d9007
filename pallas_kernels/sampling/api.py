"""Choosing a token for each row of logits."""

from collections.abc import Mapping
from importlib import import_module
from typing import Protocol, cast

from jax import Array

from jaxllm.pallas_kernels.sampling.choice import Choice
from jaxllm.pallas_kernels.sampling.vocabulary import WHOLE, Vocabulary


class ChooseTokens(Protocol):
    """The protocol of every implementation: `choose_tokens` without the choice of one."""

    def __call__(self, logits: Array, choice: Choice, vocabulary: Vocabulary = WHOLE) -> Array:
        """See `choose_tokens`."""
        ...


IMPLEMENTATIONS: Mapping[str, tuple[str, str]] = {
    "reference": ("reference", "reference_choose_tokens"),
    "xla": ("xla", "xla_choose_tokens"),
    "tpu": ("tpu.sampling", "tpu_choose_tokens"),
}
"""Module and function of each: `reference` sorts, `xla` runs everywhere, `tpu` is a Mosaic kernel."""


def choose_tokens(
    logits: Array, choice: Choice, vocabulary: Vocabulary = WHOLE, *, implementation: str = "xla"
) -> Array:
    """One token per row of `logits` float32 [R, V], -inf for what is forbidden: int32 [R].

    A token depends on its own row only. Where nothing is left of a row, or it has NaN, its token is arbitrary, but one
    of the vocabulary. With a `vocabulary` that is split, `logits` is this device's part, and the result is that for the
    whole, the same on all devices. Implementations agree but for the rounding of sums.

    Raises:
        KeyError: no implementation of that name.
        NotImplementedError: `tpu` has too little vector memory for so large a vocabulary.
    """
    return get_implementation(implementation)(logits, choice, vocabulary)


def get_implementation(name: str) -> ChooseTokens:
    """An implementation by its name. Others are not imported. Raises `KeyError` where there is none."""
    module, function = IMPLEMENTATIONS[name]
    return cast(ChooseTokens, getattr(import_module(f"{__package__}.{module}"), function))
