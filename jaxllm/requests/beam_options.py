"""The options of a beam search as the engine sees them; `early_stopping` means what it means in `transformers`."""

from typing import Any, Final, Literal

import msgspec

from jaxllm.errors import RequestError
from jaxllm.requests.value_checks import number

EarlyStopping = bool | Literal["never"]

MAX_WIDTH: Final = 1024
"""Most beams of one request, whatever the engine allows."""

MAX_LENGTH_PENALTY: Final = 10.0
"""Largest power of a hypothesis's length, either way. A score of a million tokens then stays far from overflowing."""

_IGNORED: Final = (
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "top_p",
    "top_k",
    "min_p",
    "stop",
    "repetition_detection",
    "bad_words",
    "min_tokens",
    "prompt_logprobs",
    "logprob_token_ids",
    "logit_bias",
    "allowed_token_ids",
    "structured_outputs",
    "thinking_token_budget",
    "n",
    "best_of",
)
"""Fields of `SamplingParams` that a beam search cannot take into account."""


class BeamOptions(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The beam search of one request, as the engine sees it: a field of its `SamplingParams`.

    `width` beams are kept, the best `n` hypotheses returned. The score of a hypothesis is the sum of its tokens'
    log-probabilities, divided by their number to the power of `length_penalty`. `early_stopping` says when the search
    ends, once `width` hypotheses are complete: true at once; false when the best beam, if it ended now, would not be
    among them; "never" when no continuation of it could be, as far as the length penalty tells. `with_tree` returns
    what the search has tried as well.
    """

    width: int
    n: int = 1
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False
    with_tree: bool = False

    def __post_init__(self) -> None:
        _check_count("beam_width", self.width)
        _check_count("n", self.n)
        if self.n > self.width:
            raise RequestError(f"n={self.n}: must be at most the number of beams, {self.width}", "n")
        _check_penalty("length_penalty", self.length_penalty)
        if not isinstance(self.early_stopping, bool) and self.early_stopping != "never":
            raise RequestError(
                f"early_stopping={self.early_stopping!r}: must be true, false or 'never'", "early_stopping"
            )

    def check_compatible(self, params: msgspec.Struct) -> None:
        """Raise `RequestError` for the first field of `params` that beams cannot take into account."""
        for field in msgspec.structs.fields(type(params)):
            if field.name in _IGNORED and getattr(params, field.name) not in (field.default, [], {}):
                raise RequestError(
                    f"{field.name} cannot be combined with beam search, which ranks continuations by the model's own "
                    "probabilities",
                    field.name,
                )


def _check_count(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_WIDTH:
        raise RequestError(f"{name}={value!r}: must be an integer from 1 to {MAX_WIDTH}", name)


_check_penalty = number(
    f"a number from {-MAX_LENGTH_PENALTY:g} to {MAX_LENGTH_PENALTY:g}", lambda x: abs(x) <= MAX_LENGTH_PENALTY
)
