"""Beam searches accept what they can do, and refuse the rest."""

from typing import Any

import pytest

from jaxllm.errors import RequestError
from jaxllm.requests.beam_options import BeamOptions
from jaxllm.requests.sampling_params import SamplingParams
from jaxllm.serving.llm.beam_search import BeamSearchParams


def test_the_names_of_vllm() -> None:
    params = BeamSearchParams(beam_width=3, max_tokens=20, ignore_eos=True, temperature=0.7, length_penalty=2)
    made = params.to_sampling_params()
    assert made.beam_search == BeamOptions(width=3, n=3, length_penalty=2, early_stopping=False)
    assert (made.max_tokens, made.ignore_eos, made.logprobs, made.num_sequences) == (20, True, 3, 1)


@pytest.mark.parametrize(
    ("wrong", "parameter"),
    [
        ({"beam_width": 0}, "beam_width"),
        ({"beam_width": True}, "beam_width"),
        ({"beam_width": 2000}, "beam_width"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"length_penalty": float("nan")}, "length_penalty"),
        ({"length_penalty": "1"}, "length_penalty"),
        ({"early_stopping": "always"}, "early_stopping"),
        ({"early_stopping": 1}, "early_stopping"),
        ({"temperature": -1}, "temperature"),
        ({"beams": 3}, "beams"),
    ],
)
def test_a_wrong_value_is_named(wrong: dict[str, Any], parameter: str) -> None:
    with pytest.raises(RequestError) as caught:
        BeamSearchParams(**{"beam_width": 2, "max_tokens": 5, **wrong})
    assert caught.value.parameter == parameter


@pytest.mark.parametrize(
    "other",
    [
        {"top_p": 0.9}, {"n": 2}, {"stop": "x"}, {"min_tokens": 2}, {"repetition_penalty": 1.1},
        {"logit_bias": {1: 2.0}}, {"prompt_logprobs": 0}, {"logprob_token_ids": [1]},
        {"structured_outputs": {"regex": "a+"}},
    ],
)  # fmt: skip
def test_what_beams_cannot_take_into_account_is_refused(other: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="cannot be combined with beam search") as caught:
        SamplingParams(beam_search=BeamOptions(width=2), **other)
    assert caught.value.parameter == next(iter(other))
    assert SamplingParams(beam_search=BeamOptions(width=2), stop=[], logit_bias={}, seed=3, temperature=0.5)


def test_more_texts_than_beams() -> None:
    with pytest.raises(RequestError, match="n=3: must be at most the number of beams, 2"):
        BeamOptions(width=2, n=3)
    with pytest.raises(RequestError, match="use_beam_search"):
        SamplingParams.from_dict({"beam_search": {"width": 2}})
