import json
import os
from importlib.metadata import version

import jax
import psutil
import pytest

from jaxllm.serving.cli import collect_env
from jaxllm.serving.cli.main import main
from tests.conftest import RunPython


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["collect-env", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["packages"]["jax"] == version("jax")
    assert report["packages"]["jax-cuda13-plugin"] is None or isinstance(report["packages"]["jax-cuda13-plugin"], str)
    assert report["jax"]["backend"] == "cpu"
    assert len(report["jax"]["devices"]) == len(jax.devices())
    assert report["memory"]["total_bytes"] == psutil.virtual_memory().total
    assert report["cpu"]["usable_cores"] == len(os.sched_getaffinity(0))
    assert report["environment"]["JAX_PLATFORMS"] == "cpu"
    assert report["caches"]["hugging_face"].endswith("hub")


def test_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["collect-env"]) == 0
    text = capsys.readouterr().out
    assert f"{version('jax')}\n" in text
    assert "GiB" in text
    assert "_bytes" not in text
    assert "None" not in text


def test_hugging_face_cache_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HOME", "/elsewhere")
    assert collect_env.collect()["caches"]["hugging_face"] == "/elsewhere/hub"


def test_a_backend_that_does_not_start_is_reported(run_python: RunPython) -> None:
    result = run_python(
        "-m", "jaxllm.serving.cli.main", "collect-env", "--json", env={"JAX_PLATFORMS": "no_such_platform"}
    )
    assert result.returncode == 0
    assert "no_such_platform" in json.loads(result.stdout)["jax"]["error"]
