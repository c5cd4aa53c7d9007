"""The parameters of a request to a pooling model: vLLM's names and meanings."""

from typing import Any, ClassVar, Final, Literal, get_args

import msgspec

from jaxllm.errors import RequestError, nearest, quoted
from jaxllm.requests.checked_names import CheckedNames, repr_of_changes
from jaxllm.requests.sampling_params import RequestOutputKind

PoolingTask = Literal["embed", "classify", "score", "token_embed", "token_classify"]
"""A vector per text, class scores per text, one score per text, and the first two for every token."""

TASKS: tuple[str, ...] = get_args(PoolingTask)


class _Names(CheckedNames):
    noun: ClassVar[str] = "pooling parameter"
    neutral: ClassVar[dict[str, tuple[Any, ...]]] = {
        "extra_kwargs": (None, {}),
        "late_chunking_params": (None,),
        "late_interaction_params": (None,),
        "output_kind": (RequestOutputKind.FINAL_ONLY,),
        "requires_token_ids": (False,),
        "skip_reading_prefix_cache": (None, False),
    }


class PoolingParams(msgspec.Struct, metaclass=_Names, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Parameters of one request.

    Every value is checked when the object is made; a wrong one raises `RequestError` with the name of the field in
    `parameter`. What does not suit the model is found when the request is made.
    """

    task: str | None = None
    """One of embed, classify, score, token_embed, token_classify; None: what the model is made for."""
    dimensions: int | None = None
    """Keep this many first numbers of an embedding; for models trained for it (Matryoshka)."""
    normalize: bool | None = None
    """Scale embeddings to length 1; None: as the model says, mostly true."""
    use_activation: bool | None = None
    """Turn class scores into probabilities; None: as the model says, mostly true."""
    activation: bool | None = None
    """Older name of `use_activation`."""
    softmax: bool | None = None
    """Older name of `use_activation`."""
    truncate_prompt_tokens: int | None = None
    """Keep only this many tokens of the text; -1: as many as the model allows."""
    truncation_side: str | None = None
    """Which end of the text is lost then: left or right; None: right."""
    step_tag_id: int | None = None
    """Return only the scores of tokens with this ID; None: as the model is configured, usually of all tokens."""
    returned_token_ids: list[int] | None = None
    """Return only the scores of the classes with these numbers."""

    def __post_init__(self) -> None:
        self.validate()

    def __repr__(self) -> str:
        return repr_of_changes(self)

    def validate(self) -> None:
        """Raise `RequestError` for the first wrong value."""
        if self.task is not None and self.task not in TASKS:
            hint = nearest(str(self.task), TASKS)
            raise RequestError(f"task={quoted(self.task)}: choose one of {', '.join(TASKS)}{hint}", "task")
        for name in ("normalize", "use_activation", "activation", "softmax"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, bool):
                raise RequestError(f"{name}={quoted(value)}: must be true or false", name)
        if self.truncation_side not in (None, "left", "right"):
            raise RequestError(
                f"truncation_side={quoted(self.truncation_side)}: must be left or right", "truncation_side"
            )
        _check_count("dimensions", self.dimensions, or_minus_one=False)
        _check_count("truncate_prompt_tokens", self.truncate_prompt_tokens, or_minus_one=True)
        if self.step_tag_id is not None:
            _check_index("step_tag_id", self.step_tag_id)
        for index in self.returned_token_ids or ():
            _check_index("returned_token_ids", index)
        given = {value for value in (self.use_activation, self.activation, self.softmax) if value is not None}
        if len(given) > 1:
            raise RequestError("use_activation, activation and softmax are synonyms: give only one", "use_activation")

    @property
    def activates(self) -> bool | None:
        """Whether scores become probabilities, under whichever name it was asked for; None: as the model says."""
        return next(
            (value for value in (self.use_activation, self.activation, self.softmax) if value is not None), None
        )


_LARGEST: Final = 2**63 - 1
"""No larger number can be sent to an engine in another process."""


def _check_index(name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _LARGEST:
        raise RequestError(f"{name}: {quoted(value)} must be an integer of at least 0 and less than 2**63", name)


def _check_count(name: str, value: Any, *, or_minus_one: bool) -> None:
    if value is None or (or_minus_one and value == -1 and not isinstance(value, bool)):
        return
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _LARGEST:
        raise RequestError(
            f"{name}={quoted(value)}: must be at least 1{', or -1' if or_minus_one else ''}, and less than 2**63", name
        )
