from dataclasses import replace
from typing import Any

import pytest

from jaxllm.errors import RequestError
from jaxllm.requests.repetition import RepetitionDetectionParams
from jaxllm.requests.sampling_params import INTERNAL_FIELDS, SamplingParams
from jaxllm.serving.http.limits import AdmissionLimits
from jaxllm.serving.openai.generation import parameters, validation
from jaxllm.serving.openai.protocol.completions import CompletionRequest
from jaxllm.serving.openai.protocol.generation import PredictedPart, Prediction, RepetitionBody

DEFAULTS = SamplingParams(temperature=0.6, top_p=0.9, max_tokens=16)


def test_what_a_request_leaves_out_is_as_recommended() -> None:
    body = CompletionRequest(prompt="x", top_p=0.5, stop="end", logit_bias={"5": 1000.0})
    params = parameters.sampling_params(body, DEFAULTS, max_tokens=3, logprobs=2)
    expected = SamplingParams(temperature=0.6, top_p=0.5, max_tokens=3, stop=["end"], logit_bias={5: 100.0}, logprobs=2)
    assert params == expected
    assert SamplingParams(temperature=0.6, top_p=0.9, max_tokens=16) == DEFAULTS, "they are for all requests"


def test_every_shared_field_arrives() -> None:
    values: dict[str, Any] = {
        "n": 2, "best_of": 3, "presence_penalty": 0.1, "frequency_penalty": 0.2, "repetition_penalty": 1.3,
        "temperature": 0.4, "top_p": 0.5, "top_k": 6, "min_p": 0.7, "seed": 8, "stop": ["9"], "stop_token_ids": [10],
        "bad_words": ["11"], "include_stop_str_in_output": True, "ignore_eos": True, "min_tokens": 2,
        "prompt_logprobs": 4, "skip_special_tokens": False, "spaces_between_special_tokens": False,
        "truncate_prompt_tokens": 5, "allowed_token_ids": [16], "logit_bias": {"17": 1.0},
        "thinking_token_budget": 18, "logprob_token_ids": [19], "stream_interval": 20,
        "skip_reading_prefix_cache": True, "speculative_tokens": 23,
    }  # fmt: skip
    circles = RepetitionBody(max_pattern_size=21, min_count=22)
    predicted = Prediction(type="content", content=[PredictedPart(type="text", text=text) for text in ("2", "4")])
    body = CompletionRequest(
        prompt="x", vllm_xargs={"mine": [1]}, repetition_detection=circles, prediction=predicted, **values
    )
    params = parameters.sampling_params(body, SamplingParams(), max_tokens=20, logprobs=None)
    others = {"max_tokens", "logprobs", "detokenize", "structured_outputs", "repetition_detection", "prediction"}
    others |= set(INTERNAL_FIELDS)
    assert set(values) == set(SamplingParams.__struct_fields__) - others
    assert {name: getattr(params, name) for name in values} == {**values, "logit_bias": {17: 1.0}}
    assert params.extra_args == {"mine": [1]}
    assert params.prediction == "24"
    assert params.repetition_detection == RepetitionDetectionParams(max_pattern_size=21, min_count=22)


def test_no_limit_of_reasoning() -> None:
    body = CompletionRequest(prompt="x", thinking_token_budget=-1)
    assert parameters.sampling_params(body, DEFAULTS, max_tokens=1, logprobs=None).thinking_token_budget is None


def test_a_recommended_length_is_one_that_is_not_our_default() -> None:
    assert parameters.recommended_max_tokens(SamplingParams()) is None
    assert parameters.recommended_max_tokens(SamplingParams(max_tokens=100)) == 100


@pytest.mark.parametrize(("body", "most"), [({"n": 5}, 4), ({"n": 1, "best_of": 5}, 4), ({"n": 2}, 4)])
def test_sequences_of_all_prompts_count(body: Any, most: int) -> None:
    num_prompts = 3 if body == {"n": 2} else 1
    with pytest.raises(RequestError, match=f"at most {most}"):
        validation.check_sequences(CompletionRequest(prompt="x", **body), num_prompts, most)
    validation.check_sequences(CompletionRequest(prompt="x", **body), num_prompts, 6)


def test_priorities() -> None:
    in_order = AdmissionLimits(max_model_len=8, vocab_size=8, max_logprobs=0, max_sequences=1, by_priority=False)
    by_priority = replace(in_order, by_priority=True)
    assert validation.checked_priority(-3, by_priority) == -3
    assert validation.checked_priority(0, in_order) == 0
    for limits in (in_order, by_priority):
        with pytest.raises(RequestError) as caught:
            validation.checked_priority(2**63, limits)
        assert caught.value.parameter == "priority"
