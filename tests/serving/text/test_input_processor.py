"""Prompts and parameters become requests; everything wrong is found and named here."""

from typing import Any

import numpy as np
import pytest

from jaxllm.engine.validation import RequestLimits
from jaxllm.errors import RequestError
from jaxllm.requests.sampling_params import SamplingParams
from jaxllm.serving.text.input_processor import InputProcessor, TextRequest
from jaxllm.serving.text.tokenizer import Tokenizer

LIMITS = RequestLimits(vocab_size=400, max_model_len=12, max_logprobs=5)


@pytest.fixture
def inputs(tokenizer: Tokenizer) -> InputProcessor:
    return InputProcessor(tokenizer, LIMITS, [7])


def prepare(inputs: InputProcessor, prompts: list[Any], params: Any = None, **rest: Any) -> list[TextRequest]:
    return inputs.prepare(prompts, params or SamplingParams(), [f"r{index}" for index in range(len(prompts))], **rest)


def test_every_form_of_prompt(inputs: InputProcessor, tokenizer: Tokenizer) -> None:
    token_ids = tokenizer.encode(["the cat"])[0]
    forms: list[Any] = [
        "the cat",
        token_ids,
        tuple(token_ids),
        np.array(token_ids, np.uint16),
        {"prompt": "the cat"},
        {"prompt_token_ids": token_ids, "cache_salt": "me"},
    ]
    requests = prepare(inputs, forms)
    assert [request.prompt_token_ids for request in requests] == [token_ids] * 6
    assert [request.prompt for request in requests] == ["the cat", None, None, None, "the cat", None]
    assert [request.children[0].cache_salt for request in requests] == [None] * 5 + ["me"]
    child = requests[0].children[0]
    assert child.request_id == "r0"
    assert child.prompt_token_ids.dtype == np.int32
    assert child.eos_token_ids == (7, 2), "the model's end tokens and the tokenizer's"


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "the prompt is empty"),
        ([], "the prompt is empty"),
        ({"prompt_token_ids": []}, "the prompt is empty"),
        ("a\ud800", r"lone surrogate '\\ud800' at character 1"),
        (None, "a prompt must be a string or a list of token IDs, got NoneType"),
        (b"abc", "got bytes"),
        (3.5, "got float"),
        ({}, "needs 'prompt'"),
        ({"promt": "x"}, r"unknown key 'promt' in a prompt; did you mean 'prompt'"),
        ({"prompt": 5}, "expected a string, got int"),
        ({"prompt": "x", "cache_salt": 1}, "cache_salt=1: must be a non-empty string"),
        ([1, 2.5], "must be a flat list of integers, not 2.5"),
        ([True, 1.0], "must be a flat list of integers, not True"),
        ([[1], [2, 3]], "must be a flat list of integers"),
        (["a", "b"], "must be a flat list of integers, not 'a'"),
        ([1, 400], "token 1 is 400: token IDs must be between 0 and 399"),
        ([-1], "token 0 is -1"),
        ([2**32], f"token 0 is {2**32}"),
        ([10**30], "must be a flat list of integers"),
        ([5] * 12, "has 12 tokens.*max_model_len=12.* 11 .*truncate_prompt_tokens"),
    ],
)
def test_a_wrong_prompt_is_named_with_its_place(inputs: InputProcessor, prompt: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message) as alone:
        prepare(inputs, [prompt])
    assert not str(alone.value).startswith("prompt 0:")
    with pytest.raises(RequestError, match=rf"(?s)^prompt 2: .*({message})") as error:
        prepare(inputs, ["fine", [1, 2], prompt, "fine"])
    assert error.value.parameter in ("prompt", "cache_salt")


def test_truncation_keeps_the_end(inputs: InputProcessor) -> None:
    long = list(range(10, 40))
    one, two, three = (
        prepare(inputs, [long], SamplingParams(truncate_prompt_tokens=keep))[0].prompt_token_ids for keep in (1, 5, -1)
    )
    assert one == [39]
    assert two == long[-5:]
    assert three == long[-11:]
    assert prepare(inputs, [[1, 2]], SamplingParams(truncate_prompt_tokens=9))[0].prompt_token_ids == [1, 2]
    with pytest.raises(RequestError, match="has 20 tokens"):
        prepare(inputs, [long], SamplingParams(truncate_prompt_tokens=20))


def test_parameters_and_priorities_for_all_or_for_each(inputs: InputProcessor) -> None:
    first, second = SamplingParams(max_tokens=1), SamplingParams(max_tokens=2)
    requests = prepare(inputs, ["a", "b"], [first, second], priority=[3, -1])
    assert [request.params.max_tokens for request in requests] == [1, 2]
    assert [request.children[0].priority for request in requests] == [3, -1]
    with pytest.raises(RequestError, match=r"sampling_params: 2 given for 3 prompts"):
        prepare(inputs, ["a", "b", "c"], [first, second])
    with pytest.raises(RequestError, match="priority: 1 given for 2 prompts"):
        prepare(inputs, ["a", "b"], priority=[1])
    with pytest.raises(RequestError, match=r"sampling_params: expected SamplingParams, got dict"):
        prepare(inputs, ["a"], {"temperature": 0})


def test_fields_set_after_construction_are_checked(inputs: InputProcessor) -> None:
    params = SamplingParams()
    params.temperature = -1.0
    with pytest.raises(RequestError, match=r"temperature=-1\.0") as error:
        prepare(inputs, ["a"], params)
    assert error.value.parameter == "temperature"


def test_what_the_model_cannot_do_is_found_here(inputs: InputProcessor) -> None:
    for params in (
        SamplingParams(logprobs=6),
        SamplingParams(stop_token_ids=[400]),
        SamplingParams(logit_bias={500: 1}),
    ):
        with pytest.raises(RequestError, match=r"^prompt 1: "):
            prepare(inputs, ["a", "b"], [SamplingParams(), params])


def test_bad_words_with_and_without_a_space(inputs: InputProcessor, tokenizer: Tokenizer) -> None:
    params = SamplingParams(bad_words=["cat", " dog"])
    (request,) = prepare(inputs, ["a"], params)
    want = tokenizer.encode(["cat", " cat", "dog", " dog"], add_special_tokens=False)
    assert request.children[0].params.bad_words_token_ids == want
    assert params.bad_words_token_ids is None, "the caller's parameters were changed"


def test_sequences_have_seeds_of_their_own(inputs: InputProcessor) -> None:
    (request,) = prepare(inputs, ["a"], SamplingParams(n=3, seed=40))
    assert [child.request_id for child in request.children] == ["r0-0", "r0-1", "r0-2"]
    assert [(child.params.seed, child.params.n) for child in request.children] == [(40, 1), (41, 1), (42, 1)]
    (edge,) = prepare(inputs, ["a"], SamplingParams(n=4, seed=-3))
    seeds = [child.params.seed for child in edge.children]
    assert len(set(seeds)) == 4
    assert None not in seeds
    (top,) = prepare(inputs, ["a"], SamplingParams(n=2, seed=2**63 - 1))
    assert len({child.params.seed for child in top.children}) == 2
    (random,) = prepare(inputs, ["a"], SamplingParams(n=2))
    assert [child.params.seed for child in random.children] == [None, None]


def test_best_of_needs_logprobs_and_cannot_stream(inputs: InputProcessor) -> None:
    (request,) = prepare(inputs, ["a"], SamplingParams(n=1, best_of=3))
    assert [child.params.logprobs for child in request.children] == [0, 0, 0]
    assert request.params.logprobs is None
    with pytest.raises(RequestError, match="best_of=3 cannot be streamed"):
        prepare(inputs, ["a"], SamplingParams(n=1, best_of=3), stream=True)


def test_without_a_tokenizer(inputs: InputProcessor) -> None:
    bare = InputProcessor(None, LIMITS)
    assert prepare(bare, [[1, 2]])[0].prompt_token_ids == [1, 2]
    with pytest.raises(RequestError, match="give prompts as token IDs"):
        prepare(bare, ["text"])
    with pytest.raises(RequestError, match="bad_words requires a tokenizer"):
        prepare(bare, [[1]], SamplingParams(bad_words=["x"]))
