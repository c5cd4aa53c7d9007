"""Every wrong value gives one `RequestError` that names the field; right ones survive a round trip."""

import math
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxllm.errors import RequestError
from jaxllm.requests.sampling_limits import (
    MAX_BAD_WORD_CHARACTERS,
    MAX_BAD_WORD_TOKENS,
    MAX_BAD_WORDS,
    MAX_LISTED_TOKENS,
    MAX_LOGPROB_TOKEN_IDS,
    MAX_STOP_CHARACTERS,
    MAX_STOP_TOKEN_IDS,
    MAX_STOPS,
)
from jaxllm.requests.sampling_params import RequestOutputKind, SamplingParams
from jaxllm.requests.structured_outputs import StructuredOutputsParams

NAN, INF = math.nan, math.inf

WRONG: list[tuple[str, list[Any]]] = [
    ("n", [0, -1, 1.5, "2", None, True, 20000]),
    ("best_of", [0, -1, "3", 1.0]),
    ("presence_penalty", [-2.1, 2.1, NAN, INF, "0", None]),
    ("frequency_penalty", [-2.1, 2.1, NAN, -INF, [0.0]]),
    ("repetition_penalty", [0, -1.0, NAN, INF, "1.0"]),
    ("temperature", [-0.1, NAN, INF, "1", None, True, 1j, 10**400, np.ones(2)]),
    ("top_p", [0, -0.1, 1.01, NAN, INF, "0.9"]),
    ("top_k", [-2, 1.5, "5", NAN, None, False]),
    ("min_p", [-0.1, 1.1, NAN, "0"]),
    ("seed", [2**63, -(2**63) - 1, 1.5, "1", True]),
    ("stop", ["", ["a", ""], [1], 3, {"a": 1}, [str(number) for number in range(MAX_STOPS + 1)]]),
    ("stop", ["a" * (MAX_STOP_CHARACTERS + 1)]),
    ("stop_token_ids", [[-1], ["1"], 5, "12", [1.5], [True], [2**31], range(MAX_STOP_TOKEN_IDS + 1)]),
    ("bad_words", [[""], "word", [1], 1, map(str, range(MAX_BAD_WORDS + 1)), ["a" * (MAX_BAD_WORD_CHARACTERS + 1)]]),
    ("ignore_eos", [1, None, "true"]),
    ("max_tokens", [0, -1, 1.5, "16"]),
    ("min_tokens", [-1, 17, 0.5, None]),
    ("logprobs", [-2, 1.5, "1", True]),
    ("prompt_logprobs", [-2, NAN, "1"]),
    ("logprob_token_ids", [[], [-1], ["1"], 5, "12", [1.5], [True], [2**31], range(MAX_LOGPROB_TOKEN_IDS + 1)]),
    ("detokenize", [None, 0]),
    ("truncate_prompt_tokens", [0, -2, 1.5, "1"]),
    ("logit_bias", [{1: NAN}, {1: INF}, {1: "a"}, {-1: 1.0}, {"x": 1.0}, {1.5: 1.0}, {"-1": 0}, [1], "1"]),
    ("allowed_token_ids", [[], [-1], ["a"], 1, "1"]),
    ("structured_outputs", [1, "json", [{}], {1: 2}]),
    ("thinking_token_budget", [-1, 1.5, "1", True]),
    ("reasoning_end_token_ids", [[], [-1], ["a"], 1]),
    ("bad_words_token_ids", [[1], [[-1]], "1", [None]]),
]
CASES = [
    pytest.param(name, value, id=f"{name}-{index}") for name, values in WRONG for index, value in enumerate(values)
]


@pytest.mark.parametrize(("name", "value"), CASES)
def test_a_wrong_value_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(**{name: value})
    assert caught.value.parameter == name
    assert name in str(caught.value)


def test_listed_tokens_take_the_place_of_the_most_likely_ones() -> None:
    for logprobs in (None, 0, 5, -1):
        params = SamplingParams(logprobs=logprobs, logprob_token_ids=[3, 1, 3])
        assert (params.logprobs, params.logprob_token_ids) == (0, [3, 1])
        assert params.wants_logprobs
    assert len(SamplingParams(logprob_token_ids=[*range(MAX_LOGPROB_TOKEN_IDS)]).logprob_token_ids or ()) == 128


@pytest.mark.parametrize(
    "words", [[[1, 2]] * (2 * MAX_BAD_WORDS + 1), [[1] * MAX_BAD_WORD_TOKENS, [1]]], ids=["many words", "many tokens"]
)
def test_bad_words_are_bounded_in_tokens(words: list[list[int]]) -> None:
    with pytest.raises(RequestError, match=r"bad_words: \d+ .*; at most \d+ are allowed") as caught:
        SamplingParams(bad_words_token_ids=words)
    assert caught.value.parameter == "bad_words"
    SamplingParams(bad_words_token_ids=words[:-1])


def test_lists_of_tokens_count_once_for_each_sequence() -> None:
    token_ids = list(range(MAX_LISTED_TOKENS // 8))
    SamplingParams(n=8, allowed_token_ids=token_ids)
    with pytest.raises(RequestError, match="n=9 with 65536 token IDs in allowed_token_ids") as caught:
        SamplingParams(n=9, allowed_token_ids=token_ids)
    assert caught.value.parameter == "n"


@pytest.mark.parametrize(
    ("values", "parameter"),
    [
        ({"n": 3, "best_of": 2}, "best_of"),
        ({"min_tokens": 6, "max_tokens": 5}, "min_tokens"),
        ({"stop": "a", "detokenize": False}, "stop"),
    ],
)
def test_values_that_contradict_each_other(values: dict[str, Any], parameter: str) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(**values)
    assert caught.value.parameter == parameter


def test_unknown_names() -> None:
    with pytest.raises(RequestError, match="did you mean 'temperature'") as caught:
        SamplingParams(temprature=1)  # type: ignore[call-arg]
    assert caught.value.parameter == "temprature"
    with pytest.raises(RequestError, match="did you mean 'top_p'"):
        SamplingParams.from_dict({"topp": 1})
    with pytest.raises(RequestError, match=r"^guided_json: use .*StructuredOutputsParams\(json=\.\.\.\)$"):
        SamplingParams(guided_json={})  # type: ignore[call-arg]
    with pytest.raises(RequestError, match=r"^max_new_tokens: use max_tokens$"):
        SamplingParams.from_dict({"max_new_tokens": 5})
    with pytest.raises(RequestError, match="and extra_args to requests"):
        SamplingParams.from_dict({"logits_processors": [print]})


def test_vllms_names_that_ask_for_nothing() -> None:
    assert SamplingParams.from_dict({"logits_processors": None, "watermarking": False}) == SamplingParams()
    with pytest.raises(RequestError, match="watermarking=True: not supported") as caught:
        SamplingParams.from_dict({"watermarking": True})
    assert caught.value.parameter == "watermarking"


def test_vllms_older_name_of_the_form() -> None:
    form = StructuredOutputsParams(regex="a+", backend="xgrammar")  # type: ignore[call-arg]
    assert SamplingParams.from_dict({"guided_decoding": form}).structured_outputs == StructuredOutputsParams(regex="a+")
    with pytest.raises(RequestError, match="guided_decoding: a synonym of structured_outputs; give only one"):
        SamplingParams.from_dict({"guided_decoding": form, "structured_outputs": form})


def test_what_is_left_out_where_it_is_none() -> None:
    assert SamplingParams.from_optional(n=2, temperature=None, stop=None) == SamplingParams(n=2)


def test_extra_arguments_and_kinds_of_results() -> None:
    params = SamplingParams(extra_args={"mine": [1, {"a": None}]}, output_kind=RequestOutputKind.DELTA)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params
    with pytest.raises(RequestError, match="extra_args"):
        SamplingParams(extra_args={"mine": object()})
    most = {"mine": "x" * (2**16 - 10)}
    assert SamplingParams(extra_args=most, n=64).extra_args == most
    with pytest.raises(RequestError, match="at most 4194304") as caught:
        SamplingParams(extra_args=most, n=65)
    assert caught.value.parameter == "extra_args"
    with pytest.raises(RequestError, match="at most 65536"):
        SamplingParams(extra_args={"mine": "x" * 2**16})
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(RequestError, match="nested too deeply"):
        SamplingParams(extra_args={"mine": deep})
    with pytest.raises(RequestError, match="output_kind=1: must be one of RequestOutputKind"):
        SamplingParams(output_kind=1)  # type: ignore[arg-type]


def test_values_are_normalised() -> None:
    params = SamplingParams(
        temperature=np.float32(0.5),  # type: ignore[arg-type]
        seed=-1,
        stop="end",
        stop_token_ids=np.array([3, 3, 1]),  # type: ignore[arg-type]
        logit_bias={"7": 1000, 8: -1000},  # type: ignore[dict-item]
        bad_words_token_ids=[[4, 4], [5]],
    )
    assert type(params.temperature) is float
    assert params.seed is None
    assert params.stop == params.stop_strings == ["end"]
    assert params.stop_token_ids == [3, 1]
    assert params.logit_bias == {7: 100.0, 8: -100.0}
    assert params.bad_words_token_ids == [[4, 4], [5]]


def test_edge_values_that_are_right() -> None:
    params = SamplingParams(top_k=-1, top_p=1, min_p=1, logprobs=-1, max_tokens=None, best_of=1)
    assert SamplingParams(truncate_prompt_tokens=-1).truncate_prompt_tokens == -1
    assert not params.greedy
    assert params.num_sequences == 1
    assert params.stop_strings == []
    assert SamplingParams(temperature=0).greedy
    assert not SamplingParams(temperature=0, top_k=3).uses_filters
    assert SamplingParams(top_k=3).uses_filters
    assert not SamplingParams().uses_filters
    assert SamplingParams(min_tokens=1).uses_bias
    assert not SamplingParams().uses_bias
    assert SamplingParams(presence_penalty=-1).uses_penalties
    assert not SamplingParams().uses_penalties


def test_a_field_changed_later_can_be_checked_again() -> None:
    params = SamplingParams()
    params.top_p = 0
    with pytest.raises(RequestError, match="top_p"):
        params.validate()


def test_a_clone_shares_nothing() -> None:
    params = SamplingParams(stop=["a"], logit_bias={1: 1.0})
    copy = params.clone()
    assert copy == params
    assert isinstance(copy.stop, list)
    assert copy.logit_bias is not None
    copy.stop.append("b")
    copy.logit_bias[2] = 1.0
    assert params.stop == ["a"]
    assert params.logit_bias == {1: 1.0}


def test_decoding_refuses_unknown_fields_and_wrong_values() -> None:
    for text in (b'{"temprature": 1}', b'{"temperature": -1}'):
        with pytest.raises(msgspec.ValidationError):
            msgspec.json.decode(text, type=SamplingParams)


TOKENS = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=4)


@given(
    temperature=st.floats(0.01, 5),
    top_p=st.floats(0, 1, exclude_min=True),
    top_k=st.integers(-1, 10**6),
    seed=st.none() | st.integers(-(2**63), 2**63 - 1),
    stop=st.none() | st.text(min_size=1) | st.lists(st.text(min_size=1), max_size=3),
    logit_bias=st.none() | st.dictionaries(st.integers(0, 10**6), st.floats(-200, 200), max_size=3),
    allowed_token_ids=st.none() | TOKENS,
    bad_words_token_ids=st.none() | st.lists(TOKENS, max_size=3),
)
def test_round_trip_on_the_wire(**values: Any) -> None:
    params = SamplingParams(**values)
    wire = msgspec.msgpack.encode(params)
    assert msgspec.msgpack.decode(wire, type=SamplingParams) == params
