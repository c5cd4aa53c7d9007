"""A model that cannot be loaded is one clear error, and quickly."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from jaxllm.errors import CapacityError, ConfigError
from tests.conftest import RunPython
from tests.e2e.driving import make_engine


@pytest.fixture
def model(demo_folder: Path, tmp_path: Path) -> Path:
    """A copy of the demo model, to be broken."""
    return Path(shutil.copytree(demo_folder, tmp_path / "model"))


def edit_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def corrupt_header(folder: Path) -> None:
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[8:40] = b"\xff" * 32
    path.write_bytes(data)


def truncate(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "safetensors"),
    "corrupt weights": (corrupt_header, "model.safetensors"),
    "half the weights": (truncate, "model.safetensors"),
    "wrong shape": (lambda folder: edit_config(folder, intermediate_size=256), r"mlp.*384"),
    "missing layer": (lambda folder: edit_config(folder, num_hidden_layers=40), r"model\.layers\.\d+"),
    "extra layer": (lambda folder: edit_config(folder, num_hidden_layers=1), r"model\.layers\.\d+"),
    "no config": (lambda folder: (folder / "config.json").unlink(), "config.json"),
    "broken config": (lambda folder: (folder / "config.json").write_text('{"architectures": ['), "config.json"),
    "config is a list": (lambda folder: (folder / "config.json").write_text("[]"), "config.json"),
    "unknown architecture": (
        lambda folder: edit_config(folder, architectures=["LlamaForCausalLMM"]),
        "LlamaForCausalLMM is not supported; the nearest names are LlamaForCausalLM",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_one_clear_error(model: Path, name: str) -> None:
    break_it, message = BROKEN[name]
    break_it(model)
    with pytest.raises(ConfigError, match=message) as caught:
        make_engine(model=str(model), max_num_batched_tokens=8, compile_workers=1, enforce_eager=False)
    assert "\n" not in str(caught.value)


def test_what_does_not_fit() -> None:
    with pytest.raises(CapacityError, match=r"max_model_len=2048 does not fit.* lower max_model_len to 144"):
        make_engine(num_gpu_blocks_override=10)
    with pytest.raises(CapacityError, match=r"max_model_len=2048 does not fit.* lower max_model_len to 1104"):
        make_engine(num_gpu_blocks_override=70, max_model_len=2048)
    with pytest.raises(ConfigError, match="max_model_len=4096: the model has positions for 2048"):
        make_engine(max_model_len=4096)


def test_requests_are_shorter_where_no_length_was_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    engine = make_engine(num_gpu_blocks_override=70, max_num_batched_tokens=8, max_num_seqs=2)
    assert engine.info.max_model_len == 1024
    assert "max_model_len is reduced to 1024, from the model's 2048, to fit the KV cache" in caplog.text
    engine.close()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--model", "/does/not/exist"], "'/does/not/exist': no such folder"),
        (["--model", "no-such-model-anywhere"], "no-such-model-anywhere"),
        (["--max-model-len", "1"], "max_model_len=1: must be at least 2"),
        (["--max-num-seq", "3"], "--max-num-seqs"),
        (["--num-gpu-blocks-override", "10"], "lower max_model_len to 144"),
        (["--temperature", "-1"], "temperature=-1.0"),
        (["--temperature", "nan"], "temperature=nan"),
        (["--top-p", "0"], "top_p=0"),
    ],
)
def test_command_line_errors(run_python: RunPython, flags: list[str], message: str) -> None:
    result = run_python("-m", "jaxllm.serving.cli.main", "generate", "--prompt", "Once", *flags)
    assert result.returncode == 2, result.stderr
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert result.stdout == ""
