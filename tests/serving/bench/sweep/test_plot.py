import json
from pathlib import Path
from typing import Any

import pytest

from jaxllm.errors import ConfigError
from jaxllm.serving.bench.sweep.options import PlotOptions
from jaxllm.serving.bench.sweep.plot import curve, draw, grouped, read_results, selected

RESULTS: list[dict[str, Any]] = [
    {"seqs": 8, "rate": rate, "latency": latency, "model": model}
    for model in ("a", "b")
    for rate, latency in ((2, 10.0), (1, 4.0), (1, 6.0), ("inf", 99.0))
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, result in enumerate(RESULTS):
        (tmp_path / f"{number}").mkdir()
        (tmp_path / f"{number}" / "summary.json").write_text(json.dumps([result]))
    return tmp_path


def test_curves_go_from_left_to_right_through_means() -> None:
    options = PlotOptions(var_x="rate", var_y="latency", filter_by="model==a,rate<=2")
    assert curve(selected(RESULTS, options), options) == [(1.0, 5.0), (2.0, 10.0)]


def test_filters_and_bins() -> None:
    assert len(selected(RESULTS, PlotOptions(filter_by="rate==inf"))) == 2
    assert len(selected(RESULTS, PlotOptions(filter_by="model!='a',rate>1"))) == 2
    binned = selected(RESULTS, PlotOptions(bin_by="latency%5"))
    assert [result["latency"] for result in binned][:4] == [10.0, 0.0, 5.0, 95.0]
    assert grouped(RESULTS, "model,seqs").keys() == {("model=a", "seqs=8"), ("model=b", "seqs=8")}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"filter_by": "model"}, "filter_by='model': expected one of"),
        ({"filter_by": "model<3"}, "are not both numbers"),
        ({"filter_by": "rat==3"}, "the results have no 'rat'; did you mean 'rate'"),
        ({"filter_by": "rate==7"}, "filter_by excludes all results"),
        ({"bin_by": "latency"}, "expected NAME%WIDTH"),
    ],
)
def test_wrong_selections(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        selected(RESULTS, PlotOptions(**options))  # type: ignore[arg-type]


def test_pictures_are_written_for_every_group(folder: Path) -> None:
    options = {"var_x": "rate", "var_y": "latency", "fig_by": "model", "curve_by": "seqs", "filter_by": "rate<9"}
    assert len(read_results(folder)) == 8
    names = ["FIGURE-model=a.png", "FIGURE-model=b.png"]
    assert [file.name for file in draw(folder, PlotOptions(**options, dry_run=True))] == names
    assert not list(folder.glob("*.png"))
    files = draw(folder, PlotOptions(**options, fig_dir="pictures", scale_y="log"))  # type: ignore[arg-type]
    assert files == [folder / "pictures" / name for name in names]
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in files)
    with pytest.raises(ConfigError, match="scale_x, scale_y: "):
        draw(folder, PlotOptions(**options, scale_y="loog"))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="found no results"):
        read_results(folder / "absent")
