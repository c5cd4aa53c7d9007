"""The fastest correct choice of this machine is kept; here on made-up times, and once with real ones."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu_tune
from jaxllm.pallas_kernels.measured import measured_blocks
from tests.conftest import RunPython

QUESTION = {"model": "llama-3-8b", "kernel": "decode", "page_size": 16}


def tune(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, times: dict[int | None, float | str]) -> list[int]:
    """The tile that is kept, of tiles with these times; None is what is in use."""

    def ask(question: dict[str, Any], timeout: float) -> dict[str, Any]:
        time = times[question.get("tile")]
        said = {"error": time} if isinstance(time, str) else {"microseconds": time}
        return {"device_kind": "a GPU", "key": {"kernel": question["kernel"]}, **said}

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(gpu_tune, "_ask", ask)
    gpu_tune._tune(QUESTION, (32, 64, 128), 1)
    return [blocks["tile"] for blocks in measured_blocks("paged_attention", "a GPU").values()]


@pytest.mark.parametrize(
    ("times", "kept"),
    [
        ({None: 10.0, 32: 12.0, 64: 10.1, 128: 9.0}, [128]),
        ({None: 10.0, 32: 12.0, 64: 10.1, 128: 9.9}, []),
        ({None: 10.0, 32: "it is off by 1e+00", 64: 9.0, 128: "no result after 240 s"}, [64]),
        ({None: "no GPU", 32: 1.0, 64: 1.0, 128: 1.0}, []),
    ],
    ids=["fastest", "hardly faster", "wrong and hanging", "nothing to compare with"],
)
def test_what_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, times: dict[int | None, float | str], kept: list[int]
) -> None:
    assert tune(monkeypatch, tmp_path, times) == kept


def test_a_choice_that_hangs_or_crashes_is_an_answer() -> None:
    assert gpu_tune._ask({**QUESTION, "tile": 64}, 0.01) == {"error": "no result after 0 s"}
    assert "no-such-model" in gpu_tune._ask({**QUESTION, "model": "no-such-model"}, 60)["error"]


def test_a_choice_is_checked_and_timed(run_python: RunPython, tmp_path: Path) -> None:
    """With XLA's attention, since there is no GPU."""
    question = {**QUESTION, "model": "llama-3-70b-tp8", "tile": 32}
    result = run_python(
        "-m", "benchmarks.gpu_tune", "--child", json.dumps(question), env={"XDG_CACHE_HOME": str(tmp_path)}
    )
    answer = json.loads(result.stdout)
    assert answer["microseconds"] > 0
    assert answer["key"] == {"kernel": "decode", "head_size": 128, "kv_dtype": "bfloat16"}
    assert list((tmp_path / "jaxllm" / "tuned").glob("*.json"))
