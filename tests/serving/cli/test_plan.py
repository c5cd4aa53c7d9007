"""`jaxllm plan`: what it says, here with figures made up for the compiler; slow tests compile for real chips."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from jaxllm.errors import CapacityError
from jaxllm.executor.compile.buckets import Bucket
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.pallas_kernels.chips import CHIPS
from jaxllm.planning import advice, report, staged
from jaxllm.planning.memory import CompiledProgram, MemoryUse
from jaxllm.planning.target import TargetDevices
from jaxllm.serving.cli import main as cli
from tests.jaxllm.planning.llama import LLAMA_3_8B_WEIGHTS, write_model

GIB = 2**30
PAGE = 2 * GIB // 1024
"""Llama 3 8B, 16 tokens."""


@pytest.fixture
def llama(tmp_path: Path) -> str:
    return write_model(tmp_path / "llama")


@pytest.fixture
def chip(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A v6e whose compiler is made up; the figures may be changed."""
    figures: dict[str, Any] = {"weights": LLAMA_3_8B_WEIGHTS, "temporaries": GIB // 8, "compiled": []}

    def measure(resolved: ResolvedConfig, target: TargetDevices) -> MemoryUse:
        limit = CHIPS["v6e"].hbm_bytes
        return MemoryUse(
            limit, int(limit * resolved.config.cache.gpu_memory_utilization), figures["weights"], GIB // 16, PAGE
        )

    def compile_step(resolved: ResolvedConfig, bucket: Bucket, network: Any) -> CompiledProgram:
        figures["compiled"].append(bucket.tokens)
        if figures["temporaries"] is None:
            raise CapacityError("a step does not fit the device")
        return CompiledProgram(1.25, figures["temporaries"] * bucket.tokens // 2048, GIB // 128)

    here = TargetDevices((), absent=False, chip=CHIPS["v6e"], topology="")
    monkeypatch.setattr(report, "measure", measure)
    monkeypatch.setattr(report, "compile_step", compile_step)
    monkeypatch.setattr(report, "network_of", lambda *_: None)
    monkeypatch.setattr(staged, "handover_seconds", lambda *_: 1e-5)
    monkeypatch.setattr(TargetDevices, "name", "v6e:1x1")
    monkeypatch.setattr("jaxllm.serving.cli.target_flags.find_target", lambda *_: here)
    monkeypatch.setattr(advice, "memory_limit", lambda *_: CHIPS["v6e"].hbm_bytes)
    return figures


def plan(capsys: pytest.CaptureFixture[str], model: str, *flags: str) -> str:
    shape = ["--dtype", "bfloat16", "--max-num-batched-tokens", "2048", "--compile-workers", "1"]
    assert cli.main(["plan", model, *shape, *flags]) == 0
    return capsys.readouterr().out


def test_it_fits(chip: dict[str, Any], llama: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = plan(capsys, llama)
    usable = 0.9 * 32 * GIB - LLAMA_3_8B_WEIGHTS - GIB // 16 - GIB // 8 - GIB // 128
    pages = int(usable) // PAGE
    assert f"fits: the KV cache holds {(pages - 1) * 16:,} tokens, 13.6 requests of 8,192 at once" in text
    for line in ("weights        14.96", "state           0.06", "temporaries     0.12", "code            0.01"):
        assert f"  {line}\n" in text
    assert f"  KV cache    {pages * PAGE / GIB:8.2f}\n" in text
    assert "  total          32.00\n" in text
    found = {tuple(line.split()[:3]): line.split() for line in text.splitlines() if " x " in line}
    decode, prefill = found["1", "x", "1"], found["2048", "x", "64"]
    assert decode[3:] == ["1.2", "s", "9.25", "9.16", "0.08", "0.00", "108", "decode,", "memory", "bound"]
    assert prefill[3:] == ["1.2", "s", "32.34", "31.14", "1.20", "0.00", "63,327", "prefill,", "compute", "bound"]
    assert "Decodes have 1,024 tokens of context" in text
    assert chip["compiled"] == [2048, 1]


def test_json_says_the_same(chip: dict[str, Any], llama: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(plan(capsys, llama, "--json", "--all-buckets", "--max-model-len", "4096"))
    assert (found["fits"], found["reason"], found["advice"]) == (True, None, [])
    assert found["max_concurrency"] == found["kv_tokens"] / 4096
    memory = found["memory"]
    parts = sum(memory[name] for name in ("weights", "kv_cache", "state", "temporaries", "code", "free"))
    assert parts == memory["total"] == 32 * GIB
    assert memory["free"] == pytest.approx(3.2 * GIB, rel=0.01)
    assert [step["tokens"] for step in found["steps"]] == [1, 8, 32, 128, 512, 2048]
    assert {step["compile_seconds"] for step in found["steps"]} == {1.25}
    assert found["steps"][0]["estimate"]["bound"] == "memory"


def test_drafts(chip: dict[str, Any], llama: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--spec-method", "ngram", "--spec-tokens", "3")
    text = plan(capsys, llama, *flags)
    assert "steps with 3 drafts for each request\n" in text
    assert [line.split()[0] for line in text.splitlines() if "of one without" in line] == ["1", "8", "64"]
    found = json.loads(plan(capsys, llama, "--json", *flags))
    assert [(each["requests"], each["drafts"]) for each in found["drafts"]] == [(1, 3), (8, 3), (64, 3)]
    assert "drafts for each" not in plan(capsys, llama)


def test_stages(chip: dict[str, Any], llama: str, capsys: pytest.CaptureFixture[str]) -> None:
    chip["weights"] = LLAMA_3_8B_WEIGHTS // 2
    text = plan(capsys, llama, "--pp", "2", "--max-num-seqs", "64")
    assert "2 stages and as many steps in flight, each with up to 32 of the decodes\n" in text
    for line in ("stage 0, layers 0 to 15 on 1 device, GiB", "stage 1, layers 16 to 31 on 1 device, GiB"):
        assert f"memory of each device of {line}\n  weights         7.48\n" in text
    assert chip["compiled"] == [2048, 1, 2048, 1]
    found = json.loads(plan(capsys, llama, "--pp", "2", "--json"))
    usable = int(0.9 * 32 * GIB) - LLAMA_3_8B_WEIGHTS // 2 - GIB // 16 - GIB // 8 - GIB // 128
    assert found["kv_tokens"] == (usable // PAGE - 1) * 16
    assert [(each["start"], each["stop"]) for each in found["stages"]] == [(0, 16), (16, 32)]
    assert found["num_devices"] == 2
    for index, step in enumerate(found["steps"]):
        parts = [stage["steps"][index]["estimate"] for stage in found["stages"]]
        whole, slowest = step["estimate"], max(part["seconds"] for part in parts)
        assert whole["seconds"] == pytest.approx(sum(part["seconds"] for part in parts) + 1e-5)
        assert whole["interval"] == slowest
        # Half of the requests that decode are in the other step under way.
        most = found["max_num_seqs"] // 2 if whole["work"] == "decode" else step["tokens"]
        assert whole["tokens_per_second"] == pytest.approx(min(step["tokens"], most) / slowest)
    assert any(step["estimate"]["work"] == "decode" and step["tokens"] > 16 for step in found["steps"])


def test_a_stage_that_is_too_large(chip: dict[str, Any], llama: str, capsys: pytest.CaptureFixture[str]) -> None:
    chip["weights"] = 30 * GIB
    text = plan(capsys, llama, "--pp", "2")
    assert "does not fit: stage 0: weights and state need 30.1 GiB on each device, but only 28.8 GiB are usable" in text
    assert "  this would fit: --quantization int8\n" in text, "each stage has half of it"


def test_a_model_that_is_too_large(chip: dict[str, Any], llama: str, capsys: pytest.CaptureFixture[str]) -> None:
    chip["weights"] = 30 * GIB
    assert "  this would fit: --quantization int8\n" in plan(capsys, llama)
    text = plan(capsys, llama, "--quantization", "int4")
    assert "does not fit: weights and state need 30.1 GiB on each device, but only 28.8 GiB are usable" in text
    assert "no single option makes it fit: choose a chip with more memory or a smaller model" in text
    assert "  temporaries not compiled\n" in text
    assert chip["compiled"] == [], "nothing is compiled in vain"


def test_requests_that_are_too_long(chip: dict[str, Any], llama: str, capsys: pytest.CaptureFixture[str]) -> None:
    chip["weights"] = 28 * GIB
    text = plan(capsys, llama, "--max-model-len", "8192")
    free = 0.8 * GIB - GIB // 16 - GIB // 8 - GIB // 128
    fits = (int(free) // PAGE - 1) * 16
    assert "does not fit: max_model_len=8192 does not fit: " in text
    assert f"  this would fit: --max-model-len {fits} or less\n" in text
    assert "fits: the KV" in plan(capsys, llama, "--max-model-len", str(fits))
    assert "does not fit" in plan(capsys, llama, "--max-model-len", str(fits + 16))


def test_requests_of_no_length_are_shorter_as_in_the_engine(
    chip: dict[str, Any], llama: str, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    chip["weights"] = 28 * GIB
    assert "requests of 3,072 at once" in plan(capsys, llama)
    assert "max_model_len is reduced to 3072, from the model's 8192" in caplog.text


def test_steps_that_are_too_large(chip: dict[str, Any], llama: str, capsys: pytest.CaptureFixture[str]) -> None:
    chip.update(weights=26 * GIB, temporaries=2 * GIB)
    text = plan(capsys, llama, "--max-model-len", "8192")
    assert "  this would fit: --max-num-batched-tokens 1024 or less\n" in text
    assert "fits: the KV" in plan(capsys, llama, "--max-model-len", "8192", "--max-num-batched-tokens", "1024")


def test_a_smaller_type(chip: dict[str, Any], llama: str, capsys: pytest.CaptureFixture[str]) -> None:
    chip["weights"] = 2 * LLAMA_3_8B_WEIGHTS
    text = plan(capsys, llama, "--dtype", "float32")
    assert "  this would fit: --dtype bfloat16\n" in text


def test_the_compiler_says_no(chip: dict[str, Any], llama: str, capsys: pytest.CaptureFixture[str]) -> None:
    chip["temporaries"] = None
    assert "does not fit: a step does not fit the device\n" in plan(capsys, llama)


def test_this_machine_for_real(demo_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--optimization-level", "0", "--max-num-batched-tokens", "8", "--max-num-seqs", "2", "--json"]
    assert cli.main(["plan", "demo", "--device", "cpu", *flags]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert (found["fits"], found["device"], found["dtype"]) == (True, "this machine (cpu)", "float32")
    with safe_open(demo_folder / "model.safetensors", "numpy") as checkpoint:
        numbers = sum(checkpoint.get_tensor(name).size for name in checkpoint.keys())  # noqa: SIM118
    assert found["memory"]["weights"] == 4 * numbers, "in float32"
    assert found["kv_tokens"] == 2 * 2048, "more is of no use"
    assert [step["compile_seconds"] > 0 for step in found["steps"]] == [True, True]
    assert [step["estimate"] for step in found["steps"]] == [None, None]


@pytest.mark.slow
def test_images_for_real(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A tower for images of any size: the largest program is compiled, or all."""
    vision = {"embed_dim": 32, "hidden_size": 32, "depth": 2, "num_heads": 2, "mlp_ratio": 2, "patch_size": 4}
    text = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    rope = {"rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}}
    config = {
        "architectures": ["Qwen2VLForConditionalGeneration"],
        "model_type": "qwen2_vl",
        "image_token_id": 9,
        "vision_config": vision,
        "text_config": {**text, "num_key_value_heads": 2, "vocab_size": 64, "max_position_embeddings": 512, **rope},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    flags = ["--max-image-patches", "512", "--max-num-batched-tokens", "64", "--optimization-level", "0", "--json"]
    assert cli.main(["plan", str(tmp_path), "--device", "cpu", *flags]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(each["patches"], each["rows"]) for each in found["images"]] == [(256, 64), (512, 128)]
    small, large = found["images"]
    assert small["compile_seconds"] is None
    assert large["compile_seconds"] > 0
    assert 0 < large["temporaries"] <= found["memory"]["temporaries"]
    assert cli.main(["plan", str(tmp_path), "--device", "cpu", *flags[:-1], "--all-buckets"]) == 0
    text_of = capsys.readouterr().out
    assert f"images: the devices hold {found['media_tokens']:,} of their tokens" in text_of
    assert len(re.findall(r"^ +(256|512) +(64|128) +[0-9.]+ s +[0-9.]+ GiB$", text_of, re.MULTILINE)) == 2


@pytest.mark.exhaustive
def test_sound_for_real(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The program of a model that hears is compiled, and its memory counts."""
    audio = {"d_model": 32, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 64}
    text = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = {
        "architectures": ["Qwen2AudioForConditionalGeneration"],
        "audio_token_index": 9,
        "audio_config": {**audio, "num_mel_bins": 16, "max_source_positions": 400},
        "text_config": {**text, "num_key_value_heads": 2, "vocab_size": 64, "max_position_embeddings": 256},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    flags = ["--max-num-batched-tokens", "8", "--max-num-seqs", "2", "--optimization-level", "0"]
    assert cli.main(["plan", str(tmp_path), "--device", "cpu", *flags, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["sound"]["frames"], found["sound"]["rows"], found["images"]) == (800, 200, [])
    assert 0 < found["sound"]["temporaries"] <= found["memory"]["temporaries"]
    assert cli.main(["plan", str(tmp_path), "--device", "cpu", *flags]) == 0
    assert "sound: a window of 800 frames becomes up to 200 tokens; the devices hold " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--device", "v99"], "--device v99: unknown"),
        (["--topology", "2x2"], "--topology 2x2: requires a TPU as --device"),
        (["missing/folder"], "missing/folder"),
        (["--max-model-len", "4096"], "max_model_len=4096: the model has positions for 2048 tokens only"),
    ],
)
def test_wrong_arguments(capsys: pytest.CaptureFixture[str], flags: list[str], message: str) -> None:
    assert cli.main(["plan", *flags]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["plan", "--help"])
    text = capsys.readouterr().out
    assert "jaxllm plan path/to/llama-3-70b --device v6e --topology 2x4 --tp 8" in text
    assert all(len(line) <= 120 for line in text.splitlines())


def test_room_for_copies(llama: str, chip: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert "copies of KV pages" not in plan(capsys, llama)
    flags = ("--kv-offloading-size", "16", "--max-model-len", "4096")
    text = plan(capsys, llama, *flags)
    assert "128.0 KiB per token; host memory for 131,072 tokens, which is 32.0 sessions of 4,096" in text
    more = (*flags, "--kv-offloading-path", "/x", "--kv-offloading-disk-size", "64")
    text = plan(capsys, llama, *more)
    assert "host memory for 131,072 tokens and files for 524,288, which is 32.0 and 128.0 sessions" in text
    found = re.search(r"copies pay where they are faster than prefill: ([\d.]+) GB/s", text)
    assert found is not None
    assert 1 < float(found[1]) < 20
    tiers = json.loads(plan(capsys, llama, "--json", *more))["tiers"]
    assert (tiers["token_bytes"], tiers["host_tokens"], tiers["disk_tokens"]) == (PAGE // 16, 131_072, 524_288)
