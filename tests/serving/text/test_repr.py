"""People read parameters and results as text, or as rows of a table."""

import builtins
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from jaxllm import BeamSearchParams, PoolingParams, SamplingParams, StructuredOutputsParams
from jaxllm.serving.llm.beam_search import BeamSearchOutput, BeamSearchSequence
from jaxllm.serving.pooling.outputs import (
    EmbeddingOutput,
    EmbeddingRequestOutput,
    PoolingOutput,
    PoolingRequestOutput,
    ScoringOutput,
    ScoringRequestOutput,
)
from jaxllm.serving.text.outputs import CompletionOutput, Logprob, RequestOutput
from jaxllm.serving.text.repr import MOST_SHOWN, Results


def output(name: str = "0") -> RequestOutput:
    completion = CompletionOutput(0, "a <b>", list(range(500)), finish_reason="length")
    return RequestOutput(name, "once", list(range(200)), [completion], finished=True)


@pytest.mark.parametrize(
    ("params", "shown"),
    [
        (SamplingParams(), "SamplingParams()"),
        (SamplingParams(temperature=float("1.0"), top_p=1, max_tokens=16, n=1), "SamplingParams()"),
        (SamplingParams(temperature=0, stop="x", seed=3), "SamplingParams(temperature=0.0, seed=3, stop=['x'])"),
        (PoolingParams(dimensions=3), "PoolingParams(dimensions=3)"),
        (BeamSearchParams(beam_width=2, max_tokens=4), "BeamSearchParams(beam_width=2, max_tokens=4)"),
        (StructuredOutputsParams(regex="a+"), "StructuredOutputsParams(regex='a+')"),
    ],
)
def test_parameters_show_what_differs_from_the_default(params: Any, shown: str) -> None:
    assert repr(params) in (shown, shown.replace("seed=3, stop=['x']", "stop=['x'], seed=3"))
    assert eval(repr(params)) == params


def test_long_lists_are_cut_and_defaults_left_out() -> None:
    assert repr(output()) == (
        "RequestOutput(request_id='0', prompt='once', prompt_token_ids=[0, 1, 2, 3, 4, 5, ... 200 in total], "
        "outputs=[CompletionOutput(index=0, text='a <b>', token_ids=[0, 1, 2, 3, 4, 5, ... 500 in total], "
        "finish_reason='length')], finished=True)"
    )
    # The chosen token first, as in the dictionary itself, and few of many places.
    place = {7: Logprob(-0.5, 1, "b"), 3: Logprob(-1.5, 2, "a")}
    shown = "{7: Logprob(logprob=-0.5, rank=1, decoded_token='b'), 3: Logprob(logprob=-1.5, rank=2, decoded_token='a')}"
    chosen = CompletionOutput(0, "b" * 30, [7] * 30, logprobs=[place] * 30)
    assert f"logprobs=[{shown}, {shown}, ... 30 in total]" in repr(chosen)
    read = RequestOutput("0", "b", [7] * 30, [], prompt_logprobs=[None, *[place] * 29], finished=True)
    assert f"prompt_logprobs=[None, {shown}, ... 30 in total]" in repr(read)
    embedding = EmbeddingRequestOutput("1", EmbeddingOutput([0.123456789] * 1000), [1, 2])
    assert len(repr(embedding)) < 250
    pooled = PoolingRequestOutput("1", PoolingOutput(np.ones((7, 128), np.float32)), [1, 2])
    assert "array([1, 1, 1, 1, ...], shape=(7, 128), float32)" in repr(pooled)
    beams = BeamSearchOutput([BeamSearchSequence(list(range(99)), [], -1.5, -0.5, "text", "length")])
    assert "score=-0.5" in repr(beams)
    assert len(repr(beams)) < 250


def test_a_list_shows_one_line_each_and_no_more_than_a_screen() -> None:
    many = Results(output(str(index)) for index in range(100))
    lines = repr(many).splitlines()
    assert len(lines) == MOST_SHOWN + 3
    assert lines[-2] == " ... 80 more, 100 in total"
    html = many._repr_html_()
    assert html.count("<tr>") == MOST_SHOWN + 1
    assert "80 more" in html
    assert "a &lt;b&gt;" in html
    assert "stop_reason" not in html, "a column without anything in it"
    assert repr(Results()) == "[]"
    assert many == list(many)
    assert isinstance(many, list)


def test_tokens_are_colored_by_their_probability() -> None:
    choices = {1: Logprob(-0.1, 2, "<b>"), 2: Logprob(0.0, 1, "'\"")}
    colored = CompletionOutput(0, "<b>\n", [1, 3, 4], logprobs=[choices, {3: Logprob(-99.0, 9, "\n")}, {}])
    html = colored._repr_html_()
    assert html is not None
    assert "hsla(109, 85%, 45%, 0.35)" in html
    assert "hsla(0, 85%, 45%, 0.35)" in html
    assert ">&lt;b&gt;</span>" in html
    assert ">&#x23ce;\n</span>" in html
    assert html.index("100.0 %") < html.index(" 90.5 %"), "the likeliest first"
    assert html.count("<span") == html.count("</span>") == 2
    assert "<b>" not in html
    assert CompletionOutput(0, "a", [1])._repr_html_() is None


def test_rows_of_all_kinds_of_results() -> None:
    rows = Results([output("a"), output("b")]).to_dicts()
    assert [(row["prompt_index"], row["request_id"], row["output_tokens"]) for row in rows] == [
        (0, "a", 500),
        (1, "b", 500),
    ]
    beams = BeamSearchOutput([BeamSearchSequence([1], [], -1.0, score) for score in (-0.5, -0.7)])
    assert [(row["prompt_index"], row["rank"], row["score"]) for row in Results([beams]).to_dicts()] == [
        (0, 1, -0.5),
        (0, 2, -0.7),
    ]
    scores = Results([ScoringRequestOutput("s", ScoringOutput(0.25), [1, 2, 3])])
    assert scores.to_dicts() == [{"prompt_index": 0, "request_id": "s", "score": 0.25, "prompt_tokens": 3}]
    assert "<td" in scores._repr_html_()


def test_a_frame_is_made_by_pandas_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    real_import = builtins.__import__

    def without_pandas(name: str, *rest: Any) -> ModuleType:
        if name == "pandas":
            raise ModuleNotFoundError(name)
        return real_import(name, *rest)

    monkeypatch.delitem(sys.modules, "pandas", raising=False)
    monkeypatch.setattr(builtins, "__import__", without_pandas)
    with pytest.raises(ImportError, match="pip install pandas"):
        Results([output()]).to_dataframe()
    monkeypatch.setattr(builtins, "__import__", real_import)
    pandas = pytest.importorskip("pandas")
    frame = Results([output("a"), output("b")]).to_dataframe()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame["text"]) == ["a <b>", "a <b>"]
