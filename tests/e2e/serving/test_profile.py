"""Traces of a real server, begun and ended while it answers."""

from pathlib import Path

import httpx
import jax
import pytest

from jaxllm import LLM
from jaxllm.errors import RequestError
from tests.e2e.serving.conftest import OPTIONS

BODY = {"model": "demo", "prompt": "Once upon a time", "max_tokens": 8, "ignore_eos": True}


def test_a_trace_shows_the_steps(http: httpx.Client) -> None:
    started = http.post("/start_profile")
    assert started.status_code == 200, started.text
    again = http.post("/start_profile")
    assert again.status_code == 400
    assert "already in progress" in again.text
    assert http.post("/v1/completions", json=BODY).status_code == 200
    folder = Path(http.post("/stop_profile").json()["folder"])
    assert str(folder) == started.json()["folder"]
    (trace,) = folder.rglob("*.xplane.pb")
    data = jax.profiler.ProfileData.from_file(str(trace))
    names = {event.name for plane in data.planes for line in plane.lines for event in line.events}
    assert any("step_" in name for name in names), sorted(names)[:50]
    ended = http.post("/stop_profile")
    assert ended.status_code == 400
    assert "no trace is in progress" in ended.text


def test_without_a_folder_there_are_none(llm: LLM) -> None:
    with pytest.raises(RequestError, match="profiler_dir"):
        llm.start_profile()
    assert "profiler_dir" not in OPTIONS


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with LLM("demo", **OPTIONS, profiler_dir=str(tmp_path / "file")) as llm:
        with pytest.raises(RequestError, match="cannot start a trace"):
            llm.start_profile()
        assert llm.generate("Mira is", use_tqdm=False)[0].finished
