"""What `LLM.beam_search` may be asked for, under vLLM's names."""

from typing import ClassVar

import msgspec

from jaxllm.beam.options import BeamOptions, EarlyStopping
from jaxllm.checked_names import CheckedNames, repr_of_changes
from jaxllm.sampling_params import SamplingParams


class _Names(CheckedNames):
    noun: ClassVar[str] = "parameter of a beam search"


class BeamSearchParams(msgspec.Struct, metaclass=_Names, kw_only=True, forbid_unknown_fields=True):
    """Parameters of `LLM.beam_search`, under vLLM's names. Checked when made; raises `RequestError`."""

    beam_width: int
    """Hypotheses that are followed, and returned."""
    max_tokens: int
    """Most tokens of a hypothesis."""
    ignore_eos: bool = False
    """Go on after the model's end token."""
    temperature: float = 0.0
    """Accepted, without effect as in vLLM: beams are ranked by the model's own probabilities."""
    length_penalty: float = 1.0
    """A hypothesis scores sum of log-probabilities / number of tokens ** length_penalty; above 0 favours long ones."""
    early_stopping: EarlyStopping = False
    """Whether the search ends as soon as `beam_width` hypotheses are complete; see `BeamOptions`."""
    include_stop_str_in_output: bool = False
    """Leave the end token in tokens and text."""

    def __post_init__(self) -> None:
        self.to_sampling_params()

    def __repr__(self) -> str:
        return repr_of_changes(self)

    def to_sampling_params(self) -> SamplingParams:
        """What the engine is asked for. Raises `RequestError` for a value that is wrong."""
        options = BeamOptions(
            width=self.beam_width,
            n=self.beam_width,
            length_penalty=self.length_penalty,
            early_stopping=self.early_stopping,
        )
        made: SamplingParams = SamplingParams(
            max_tokens=self.max_tokens,
            ignore_eos=self.ignore_eos,
            temperature=self.temperature,
            include_stop_str_in_output=self.include_stop_str_in_output,
            logprobs=self.beam_width,
            beam_search=options,
        )
        return made
