"""Repetitions, found as the plain definition finds them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxllm.errors import RequestError
from jaxllm.requests.repetition import MAX_PATTERN, RepetitionDetectionParams
from jaxllm.requests.sampling_params import SamplingParams
from jaxllm.serving.text.repetition import RepetitionWatch


def repeats(tokens: list[int], params: RepetitionDetectionParams) -> bool:
    """Whether the end is one pattern, several times."""
    for size in range(max(params.min_pattern_size, 1), params.max_pattern_size + 1):
        length = size * params.min_count
        if length <= len(tokens) and tokens[-length:] == tokens[-size:] * params.min_count:
            return True
    return False


@settings(deadline=None, max_examples=300)
@given(
    tokens=st.lists(st.integers(0, 2), max_size=60),
    smallest=st.integers(0, 5),
    more=st.integers(0, 6),
    count=st.integers(2, 5),
)
def test_as_it_is_defined(tokens: list[int], smallest: int, more: int, count: int) -> None:
    params = RepetitionDetectionParams(
        min_pattern_size=smallest, max_pattern_size=max(smallest + more, 1), min_count=count
    )
    watch = RepetitionWatch(params)
    for length in range(1, len(tokens) + 1):
        assert watch.push(tokens[length - 1]) == repeats(tokens[:length], params)


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"max_pattern_size": 2, "min_count": 1}, "min_count"),
        ({"max_pattern_size": 2}, "min_count"),
        ({"max_pattern_size": 1, "min_pattern_size": 2, "min_count": 2}, "min_pattern_size"),
        ({"max_pattern_size": MAX_PATTERN + 1, "min_count": 2}, "max_pattern_size"),
        ({"max_pattern_size": -1, "min_count": 2}, "max_pattern_size"),
        ({"max_pattern_size": 2, "min_count": 2**70}, "min_count"),
        ({"max_pattern_size": True, "min_count": 2}, "max_pattern_size"),
        ({"max_pattern": 2, "min_count": 2}, "max_pattern"),
        ("no", "repetition_detection"),
    ],
)
def test_wrong_values_are_named(fields: object, name: str) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams.from_dict({"repetition_detection": fields})
    assert caught.value.parameter == name


def test_nothing_is_looked_for_by_default() -> None:
    assert SamplingParams(repetition_detection=RepetitionDetectionParams()).repetition_detection is not None
    assert SamplingParams().repetition_detection is None
