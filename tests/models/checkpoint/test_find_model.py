"""Finding models: here, and on the hub."""

from pathlib import Path
from typing import Any

import pytest

from jaxllm.models.checkpoint import find_model as module
from jaxllm.models.checkpoint.find_model import find_model
from jaxllm.models.checkpoint.model_config import read_config
from jaxllm.models.errors import ModelError
from tests.models import small


def test_local_models(tmp_path: Path) -> None:
    assert find_model(str(tmp_path)) == tmp_path
    assert find_model("demo") == Path(module.__file__).parents[1] / "demo"
    assert find_model("demo-vision") == Path(module.__file__).parents[1] / "demo_vision"
    assert find_model("demo-sound") == Path(module.__file__).parents[1] / "demo_sound"
    assert find_model("demo-eagle3") == Path(module.__file__).parents[1] / "demo_eagle3"
    (tmp_path / "file").touch()
    with pytest.raises(ModelError, match="is a file; give the folder"):
        find_model(str(tmp_path / "file"))


@pytest.mark.parametrize("model", ["./nowhere", "../nowhere", "/nowhere/at/all", "~/nowhere", "a/b/c", "", "a\\b"])
def test_paths_are_not_looked_up_on_the_hub(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *a, **k: pytest.fail("asked the hub"))
    with pytest.raises(ModelError, match="no such folder"):
        find_model(model)


def test_hub_id_that_is_nowhere(tmp_path: Path) -> None:
    with pytest.raises(ModelError) as error:
        find_model("some-org/some-model", download_dir=str(tmp_path))
    assert str(error.value) == (
        "model 'some-org/some-model': no such local folder, and it is not in the local Hub cache, and HF_HUB_OFFLINE "
        "is set"
    )
    with pytest.raises(ModelError, match="is set; did you mean 'demo' or 'demo-sound' or 'demo-vision'"):
        find_model("demos", download_dir=str(tmp_path))
    with pytest.raises(ModelError, match="not a valid Hub ID"):
        find_model("some org/model?", download_dir=str(tmp_path))


def test_hub_id_in_the_cache(tmp_path: Path) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = tmp_path / "models--some-org--some-model"
    snapshot = repository / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    small.save(snapshot)
    assert read_config(find_model("some-org/some-model", download_dir=str(tmp_path))).vocab_size == 24
    with pytest.raises(ModelError, match=r"\(revision v2\): no such local folder, and it is not in the"):
        find_model("some-org/some-model", "v2", str(tmp_path))


def test_hub_errors_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **options: Any) -> None:
        assert options["revision"] == "v2"
        assert ("*.safetensors" in options["allow_patterns"]) == with_weights
        raise RuntimeError("line one\nline two")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    for with_weights in (True, False):
        with pytest.raises(ModelError, match=r"downloading it from the Hub failed: RuntimeError: line one$"):
            find_model("org/name", "v2", weights=with_weights)
