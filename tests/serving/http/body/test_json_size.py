"""Counting what a JSON text consists of, compared with what it decodes to."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jaxllm.serving.http.body import json_size as module
from jaxllm.serving.http.body.json_size import JsonSize, json_size

TEXTS = st.text('ab"\\[]{},:\n é')
VALUES = st.recursive(
    st.none() | st.integers() | TEXTS, lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner), max_leaves=30
)


def size_of(value: Any) -> JsonSize:
    if not isinstance(value, (dict, list)):
        return JsonSize(0, 0)
    inside = [size_of(item) for item in (value.values() if isinstance(value, dict) else value)]
    return JsonSize(
        1 + sum(each.containers for each in inside), max(0, len(value) - 1) + sum(each.commas for each in inside)
    )


@pytest.mark.parametrize("block", [1, 2, 3, 16, 2**18])
@given(value=VALUES, readable=st.booleans())
@example(value=["\\", '\\"', '\\\\",['], readable=True)
def test_it_counts_what_is_outside_strings(value: Any, readable: bool, block: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_BLOCK", block)
        assert json_size(json.dumps(value, ensure_ascii=readable).encode()) == size_of(value)


@given(st.binary())
def test_what_is_no_json_does_no_harm(text: bytes) -> None:
    assert json_size(text).containers <= len(text)
