from pathlib import Path
from typing import Any

import pytest

from jaxllm.errors import ConfigError
from jaxllm.serving.bench.client import LoadResult
from jaxllm.serving.bench.measurements import Measurements
from jaxllm.serving.bench.plot import write_plot

GOOD = LoadResult(start=5.0, ttft=0.1, itls=[0.2, 0.3], latency=0.6, output_tokens=3, text="abc")
BAD = LoadResult(start=5.0, error="status 500")


def measured(*answers: LoadResult) -> Measurements:
    found = Measurements()
    for index, answer in enumerate(answers):
        found.add(index, answer)
    return found


@pytest.mark.parametrize("answers", [[GOOD, GOOD, BAD], [GOOD], [BAD]])
def test_a_picture_is_written(answers: list[LoadResult], tmp_path: Path) -> None:
    file = tmp_path / "plot.png"
    write_plot(file, measured(*answers), "title")
    assert file.read_bytes().startswith(b"\x89PNG")


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot write --plot"):
        write_plot(tmp_path / "absent" / "plot.png", measured(GOOD), "title")


def test_the_gaps_of_a_long_tail_can_still_be_told_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    figures: list[Any] = []

    def keep(figure: Any, *_: Any, **__: Any) -> None:
        figures.append(figure)

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", keep)
    slow = LoadResult(start=0.0, ttft=0.1, itls=[0.0, *[0.001] * 97, 0.5, 2.0], latency=2.7, output_tokens=101)
    write_plot(tmp_path / "plot.png", measured(slow), "title")
    first, gaps, whole, output = figures[0].axes
    assert (first.get_xscale(), gaps.get_xscale(), whole.get_xscale()) == ("linear", "log", "linear")
    labels = [text.get_text() for text in gaps.get_legend().get_texts()]
    assert labels[0] == "p50: 1.0 ms"
    assert [label.split(":")[0] for label in labels] == ["p50", "p90", "p99", "mean"]
    (bars,) = output.patches
    assert len(bars.get_data().values) == 11
