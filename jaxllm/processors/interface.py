"""What a logits processor is: the shape that vLLM's have, on NumPy arrays, and a form that is compiled into a program.

Axis letters: B requests, V vocabulary.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from jaxllm.requests.sampling_params import SamplingParams

if TYPE_CHECKING:
    import jax

    from jaxllm.config import EngineConfig

State = TypeVar("State")
RequestProcessor = Callable[..., Any]
"""`(output_ids, logits) -> logits` or `(prompt_ids, output_ids, logits) -> logits` of one request: float32 [V]."""


class MoveDirectionality(Enum):
    """How requests change places in a batch. Here they never do; vLLM's names are for classes that ask."""

    UNIDIRECTIONAL = auto()
    SWAP = auto()


@dataclass(frozen=True)
class BatchUpdate:
    """The changes of a batch. An index is a row of the logits.

    `added` are (index, parameters, prompt's token ids, output's token ids): the last is a list that grows with the
    output. `removed` are indexes; what is removed comes before what is added. `moved` is empty.
    """

    batch_size: int
    removed: Sequence[int]
    added: Sequence[tuple[int, SamplingParams, list[int] | None, list[int]]]
    moved: Sequence[tuple[int, int, MoveDirectionality]] = ()


class _Processor:
    """What both forms have."""

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Raise `ValueError` for a request whose `extra_args` are wrong: it ends with that message."""

    def is_argmax_invariant(self) -> bool:
        """Whether the most likely token stays the most likely one: then greedy requests need it not.

        Such a processor gets logits that are divided by the temperature; others get them before that.
        """
        return False


class LogitsProcessor(_Processor, ABC):
    """One that runs on the host, on NumPy arrays, between the model and the choice of tokens.

    Classes that are made for vLLM fit: a class whose module has imported `torch` gets tensors that share the memory.
    """

    def __init__(self, vllm_config: "EngineConfig", device: Any, is_pin_memory: bool) -> None:
        """`vllm_config` is the engine's; the device is "cpu", and nothing is pinned."""

    def uses(self, params: SamplingParams) -> bool:
        """Whether to process a request. Others stay on the fast path: so say no wherever the answer is known."""
        del params
        return True

    @abstractmethod
    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Called before `apply`; None: the requests are those of the step before."""

    @abstractmethod
    def apply(self, logits: Any) -> Any:
        """The logits, float32 [B, V], changed in place or not. Rows of indexes that no request has mean nothing."""


class AdapterLogitsProcessor(LogitsProcessor):
    """Makes a batch's processor of functions that know one request each: what one of them raises ends that request."""

    def __init__(self, vllm_config: "EngineConfig", device: Any, is_pin_memory: bool) -> None:
        super().__init__(vllm_config, device, is_pin_memory)
        self.req_info: dict[int, Callable[[Any], Any]] = {}
        self.failures: dict[int, Exception] = {}
        """By index, what functions raised in the last step."""

    @abstractmethod
    def new_req_logits_processor(self, params: SamplingParams) -> RequestProcessor | None:
        """The function of a request, or None if it has none."""

    def uses(self, params: SamplingParams) -> bool:
        """Whether the request has a function."""
        return self.new_req_logits_processor(params) is not None

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Make functions for new requests."""
        process_dict_updates(self.req_info, batch_update, self._bound)

    def apply(self, logits: Any) -> Any:
        """Each function on its row."""
        self.failures = {}
        for index, function in self.req_info.items():
            row = logits[index]
            try:
                changed = function(row)
                if changed is None:
                    raise TypeError("the function of a request returned None, not logits")
                if changed is not row:
                    logits[index] = changed
            except Exception as error:  # noqa: BLE001  (the function is somebody's: whatever it raises)
                self.failures[index] = error
        return logits

    def _bound(
        self, params: SamplingParams, prompt_ids: list[int] | None, output_ids: list[int]
    ) -> Callable[[Any], Any] | None:
        try:
            function = self.new_req_logits_processor(params)
            if function is None:
                return None
            wants_prompt = len(inspect.signature(function).parameters) == 3
        except Exception as error:  # noqa: BLE001  (it fails in its own row)
            return partial(_raise, error)
        known = (prompt_ids, output_ids) if wants_prompt else (output_ids,)
        return lambda row: function(*known, row)


def _raise(error: Exception, row: Any) -> Any:
    del row
    raise error


class JaxLogitsProcessor(_Processor, ABC):
    """One that is part of a compiled program: a pure function of logits and of a few numbers for each request.

    `shape` and `dtype` ("float32" or "int32") are those of a request's numbers.
    """

    shape: ClassVar[tuple[int, ...]] = ()
    dtype: ClassVar[str] = "float32"

    def __init__(self, config: "EngineConfig", vocab_size: int) -> None:
        """`vocab_size` is V."""

    @abstractmethod
    def parameters(self, params: SamplingParams) -> Any:
        """A request's numbers, of `shape`; None: it does not use this. Called once for each request."""

    def parameters_after(self, params: SamplingParams, output: Sequence[int]) -> Any:
        """The numbers for the token after an output, where they depend on it; called for each token but the first.

        A class that defines it is asked only about requests that use it.
        """
        raise NotImplementedError

    @abstractmethod
    def apply(self, logits: "jax.Array", parameters: "jax.Array") -> "jax.Array":
        """The logits float32 [B, V] as they shall be, from numbers [B, *shape].

        It is traced once, when the engine starts, so it must be pure. A row must depend on nothing but itself, and
        those of requests that do not use it mean nothing.
        """


def process_dict_updates(
    req_entries: dict[int, State],
    batch_update: BatchUpdate | None,
    new_state: Callable[[SamplingParams, list[int] | None, list[int]], State | None],
) -> bool:
    """Bring a dictionary by index up to date; True if it has changed. `new_state` gives None for what needs none."""
    if batch_update is None:
        return False
    changed = False
    for index in batch_update.removed:
        changed |= req_entries.pop(index, None) is not None
    for index, params, prompt_ids, output_ids in batch_update.added:
        state = new_state(params, prompt_ids, output_ids)
        changed |= req_entries.pop(index, None) is not None or state is not None
        if state is not None:
            req_entries[index] = state
    return changed
