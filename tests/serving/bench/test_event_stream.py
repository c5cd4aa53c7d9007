from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from jaxllm.serving.bench.client import EventReader

TEXT = 'data: {"a": "x\u2028y\u0085z"}\n\n: a comment\n\ndata:[DONE]\r\n\r\nevent: other\n\n'
EVENTS = ['{"a": "x\u2028y\u0085z"}'.encode(), b"[DONE]"]


@given(st.lists(st.integers(0, len(TEXT.encode())), max_size=6))
def test_however_the_bytes_are_cut_the_events_are_the_same(cuts: list[int]) -> None:
    data, reader = TEXT.encode(), EventReader()
    edges = [0, *sorted(cuts), len(data)]
    pieces = [data[start:end] for start, end in pairwise(edges)]
    assert [event for piece in pieces for event in reader.feed(piece)] == EVENTS


def test_an_event_comes_as_soon_as_its_line_ends() -> None:
    reader = EventReader()
    assert list(reader.feed(b"data: 1")) == []
    assert list(reader.feed(b"\ndata: 2")) == [b"1"]
