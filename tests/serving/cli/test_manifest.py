"""`jaxllm manifest`: what it writes, what it chooses, and what it refuses."""

from pathlib import Path

import pytest
import yaml

from jaxllm.serving.cli import main as cli
from jaxllm.serving.cli.manifest import name_of
from tests.jaxllm.planning.llama import write_model
from tests.serving.deploy.validation import check


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_model(tmp_path_factory.mktemp("models") / "Llama-3-8B")


def test_the_demo_on_a_cpu(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.main(["manifest", "demo", "--device", "cpu"]) == 0
    printed, said = capsys.readouterr()
    objects = list(yaml.safe_load_all(printed))
    for each in objects:
        check(each)
    assert "demo: cpu, 1 host" in said
    # A folder has the same, for `kubectl apply -k`.
    assert cli.main(["manifest", "demo", "--device", "cpu", "--output", str(tmp_path / "demo")]) == 0
    kustomization = yaml.safe_load((tmp_path / "demo" / "kustomization.yaml").read_text())
    assert [yaml.safe_load((tmp_path / "demo" / name).read_text()) for name in kustomization["resources"]] == objects


def test_the_smallest_gpu_that_holds_it(llama: str, capsys: pytest.CaptureFixture[str]) -> None:
    # 16 GB of weights do not fit one L4's 24 GB with 32,768 tokens of 128 KiB each, and do fit two of them.
    flags = ["--bucket", "gs://models/llama", "--device", "l4", "--hf-overrides", '{"max_position_embeddings": 32768}']
    assert cli.main(["manifest", llama, *flags]) == 0
    printed, said = capsys.readouterr()
    assert "2 x l4, 1 host of g2-standard-24" in said
    (deployment,) = [each for each in yaml.safe_load_all(printed) if each["kind"] == "Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "2"}
    assert container["args"][:6] == ["serve", "/models", "--device", "gpu", "--tensor-parallel-size", "2"]
    assert deployment["metadata"]["name"] == "llama-3-8b"
    # One that is named holds what it can, and the command says so.
    assert cli.main(["manifest", llama, *flags, "--gpus", "1"]) == 0
    printed, said = capsys.readouterr()
    assert "this is below the model's limit" in said
    assert "--max-model-len" in printed


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["demo"], "--device is required"),
        (["demo", "--device", "v6"], "unknown"),
        (["demo", "--device", "cpu", "--topology", "2x2"], "only TPUs have a topology"),
        (["demo", "--device", "v6e", "--gpus", "2"], "--gpus 2"),
        (["demo", "--device", "cpu", "--replicas", "0"], "--replicas 0"),
        (["demo", "--device", "cpu", "--bucket", "models"], "expected gs://"),
        (["demo", "--device", "cpu", "--name", "Demo!"], "--name Demo!"),
        (["demo", "--device", "cpu", "--max-model-len", "0"], "max_model_len"),
    ],
)
def test_what_is_wrong_is_said(flags: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["manifest", *flags]) == 2
    printed, said = capsys.readouterr()
    assert reason in said
    assert not printed


def test_folders_that_pods_do_not_see(llama: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["manifest", llama, "--device", "cpu"]) == 2
    assert "--bucket" in capsys.readouterr().err


def test_models_that_nothing_holds(llama: str, capsys: pytest.CaptureFixture[str]) -> None:
    large = ["--hf-overrides", '{"vocab_size": 100000000}']
    assert cli.main(["manifest", llama, "--bucket", "gs://models", "--device", "l4", *large]) == 2
    assert "does not fit 8 x l4" in capsys.readouterr().err


def test_a_folder_that_is_there_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").write_text("mine")
    assert cli.main(["manifest", "demo", "--device", "cpu", "--output", str(tmp_path)]) == 2
    assert "give a new or empty folder" in capsys.readouterr().err
    assert [each.name for each in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize(
    ("model", "name"), [("Qwen/Qwen3-0.6B", "qwen3-0-6b"), ("demo", "demo"), ("path/to/01-ai_Yi", "model-01-ai-yi")]
)
def test_names(model: str, name: str) -> None:
    assert name_of(model) == name
