"""Other families than Qwen's; several devices; and a language model of few bits whose tower is as it was."""

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from jaxllm.errors import ConfigError
from tests.conftest import RunPython
from tests.e2e.driving import make_engine, run
from tests.e2e.images.qwen import FAMILIES, OTHERS, expected, make_model
from tests.e2e.images.qwen import save as save_model
from tests.e2e.images.qwen_prompts import Parts, drawn_prompts, pixels, seeing
from tests.models.quantization.checkpoints import save
from tests.models.quantization.formats import FORMATS
from tests.thinned import thinned


# Rows and answers of others are compared in `test_families`.
@pytest.mark.slow
@pytest.mark.parametrize("name", thinned(["glm4v_moe"], [name for name in OTHERS if name != "glm4v_moe"]))
def test_families_that_rotate_likewise(tmp_path: Path, name: str) -> None:
    reference = save_model(OTHERS[name], tmp_path)
    engine = make_engine(model=str(tmp_path), max_model_len=128, max_num_seqs=2, max_num_batched_tokens=16)
    prompts: list[Parts] = [[1, 5, pixels(0, 3, 5), 7, pixels(1, 6, 2), 8], [1, 9, 10]]
    found = run(engine, [seeing(i, prompt, max_tokens=12) for i, prompt in enumerate(prompts)])
    for i, prompt in enumerate(prompts):
        assert found[str(i)].token_ids == expected(reference, prompt, 12)
    engine.close()


def test_text_as_with_the_language_model_alone(tmp_path: Path) -> None:
    """Tokens and log-probabilities are the same to the last bit."""
    whole, text = tmp_path / "whole", tmp_path / "text"
    save_model(FAMILIES["qwen2_vl"], whole)
    text.mkdir()
    tensors = load_file(whole / "model.safetensors")
    own = {name: tensor for name, tensor in tensors.items() if not name.startswith("visual.")}
    save_file(own, text / "model.safetensors", {"format": "pt"})
    values = json.loads((whole / "config.json").read_text())["text_config"]
    rope = {"rope_type": "default", "rope_theta": 10_000.0}
    changed = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "rope_parameters": rope}
    (text / "config.json").write_text(json.dumps({**values, **changed}))
    answers = []
    for folder in (whole, text):
        engine = make_engine(model=str(folder), dtype="float32", max_model_len=128, max_num_seqs=2)
        prompts: list[Parts] = [[1, *range(20, 60)], [1, 9, 10]]
        answers.append(run(engine, [seeing(i, prompt, max_tokens=12, logprobs=3) for i, prompt in enumerate(prompts)]))
        engine.close()
    assert answers[0] == answers[1]


def test_gptq(tmp_path: Path) -> None:
    wanted = save(tmp_path, make_model(FAMILIES["qwen3_vl"]), FORMATS["GPTQ desc_act"])
    engine = make_engine(model=str(tmp_path), dtype="float32", max_model_len=128, max_num_seqs=1)
    prompt: Parts = [1, 5, pixels(0, 3, 5), 7, 8]
    found = run(engine, [seeing("one", prompt, max_tokens=8)])
    assert found["one"].token_ids == expected(wanted, prompt, 8)
    engine.close()
    weights = tmp_path / "model.safetensors"
    tensors = load_file(weights)
    name = "model.visual.blocks.0.attn.proj"
    tensors[f"{name}.qweight"] = tensors.pop(f"{name}.weight")
    save_file(tensors, weights, {"format": "pt"})
    with pytest.raises(ConfigError, match=r"missing from the checkpoint: model\.visual\.blocks\.0\.attn\.proj\.weight"):
        make_engine(model=str(tmp_path), dtype="float32", max_model_len=128)


# CI has images on several devices in `test_engine_images.py`.
@pytest.mark.exhaustive
@pytest.mark.parametrize("mesh", ["data=2", "model=2"])
def test_several_devices(tmp_path: Path, run_python: RunPython, mesh: str) -> None:
    reference = save_model(FAMILIES["qwen3_vl"], tmp_path)
    script = str(Path(__file__).with_name("see_qwen_on_devices.py"))
    done = run_python(script, str(tmp_path), mesh, env={"PYTHONPATH": "."}, devices=2, timeout=300)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [expected(reference, prompt, 12) for prompt in drawn_prompts()]
