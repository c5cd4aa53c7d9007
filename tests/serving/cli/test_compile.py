"""`jaxllm compile`, and engines that start from what it makes, for real."""

import hashlib
import json
import os
import pickle
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import jax
import pytest

from jaxllm import LLM, LoRARequest, SamplingParams
from jaxllm.errors import CapacityError, ConfigError
from jaxllm.executor.compile.executables import Executables
from jaxllm.serving.cli import main as cli
from tests.adapter_folders import write_adapter

OPTIONS: dict[str, Any] = {
    "optimization_level": 0,
    "max_num_seqs": 2,
    "max_num_batched_tokens": 8,
    "max_model_len": 256,
}
FLAGS = [part for name, value in OPTIONS.items() for part in (f"--{name}", str(value))]
PROMPTS = ["Once upon a time", "What is 2 + 3?"]
PARAMS = [
    SamplingParams(temperature=0, max_tokens=12, prompt_logprobs=1, logprobs=2),
    SamplingParams(temperature=1, seed=5, max_tokens=12, presence_penalty=0.5, logit_bias={7: -3}, min_tokens=3),
]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundles") / "bundle"
    assert cli.main(["compile", "demo", "--output", str(folder), *FLAGS]) == 0
    return folder


@pytest.fixture
def copy(bundle: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(bundle, tmp_path / "copy"))


@contextmanager
def compilations() -> Iterator[list[Any]]:
    """The names of all functions that are compiled, or taken from a cache, on any thread."""
    seen: list[Any] = []

    def listen(event: str, duration_secs: float, **details: str | int) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            seen.append(details.get("fun_name"))

    # What earlier tests have compiled in this process must not help.
    jax.clear_caches()
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield seen
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


@contextmanager
def unpickled() -> Iterator[list[Any]]:
    """The names looked up while something is unpickled: the way in which a pickle runs code."""
    found: list[Any] = []
    listening = True

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        if listening and event == "pickle.find_class":
            found.append(arguments)

    # Such a hook stays for good.
    sys.addaudithook(hear)
    pickle.loads(pickle.dumps(Path()))
    assert found, "it hears"
    found.clear()
    yield found
    listening = False


def answers(llm: LLM, lora: LoRARequest | None = None) -> list[Any]:
    outputs = llm.generate(PROMPTS, PARAMS, lora_request=[lora, None], use_tqdm=False)
    return [(output.outputs[0].token_ids, output.prompt_logprobs, output.outputs[0].logprobs) for output in outputs]


def test_an_engine_starts_and_runs_without_compiling(bundle: Path) -> None:
    check(bundle, OPTIONS)


@pytest.mark.slow
def test_stages(tmp_path: Path) -> None:
    """Each stage finds its own executables, and an engine of another number of stages finds none."""
    folder = tmp_path / "bundle"
    assert cli.main(["compile", "demo", "--output", str(folder), *FLAGS, "--pp", "2"]) == 0
    assert {path.name for path in folder.glob("stage_*")} == {
        f"stage_0_{name}.bin" for name in ("copy_pages", "empty_state", "set_pages", "step_1", "step_8")
    }
    check(folder, OPTIONS | {"pipeline_parallel_size": 2})
    for stages, theirs in ((1, "2 in the bundle, 1 here"), (4, "2 in the bundle, 4 here")):
        with pytest.raises(ConfigError, match=f"another engine: pipeline_parallel_size: {theirs}"):
            LLM("demo", **OPTIONS, pipeline_parallel_size=stages, executables=str(folder))


@pytest.mark.slow
def test_slots_for_adapters_of_weights_and_caches_of_few_bits(tmp_path: Path) -> None:
    """An adapter comes into a slot of an engine from a bundle without compiling; other slots are another engine's."""
    slots: dict[str, Any] = {"enable_lora": True, "max_loras": 2, "max_lora_rank": 8}
    few_bits = {"quantization": "int4", "kv_cache_dtype": "int8"}
    flags = ["--enable-lora", "--max-loras", "2", "--max-lora-rank", "8"]
    flags += ["--quantization", "int4", "--kv-cache-dtype", "int8"]
    assert cli.main(["compile", "demo", "--output", str(tmp_path / "bundle"), *FLAGS, *flags]) == 0
    adapter = LoRARequest("own", 1, str(write_adapter(tmp_path / "own", scale=0.3)))
    check(tmp_path / "bundle", OPTIONS | slots | few_bits, adapter)
    several: list[dict[str, Any]] = [slots, few_bits, {**slots, **few_bits, "max_lora_rank": 16}]
    for others in several:
        with pytest.raises(ConfigError, match="this bundle is for another engine: "):
            LLM("demo", **OPTIONS, **others, executables=str(tmp_path / "bundle"))


def check(bundle: Path, options: dict[str, Any], lora: LoRARequest | None = None) -> None:
    """An engine from a bundle compiles nothing, and answers as one that was compiled on the spot."""
    with (
        compilations() as seen,
        unpickled() as names,
        LLM("demo", **options, executables=str(bundle), strict_compilation=True) as llm,
    ):
        from_bundle = answers(llm, lora)
    assert seen == []
    assert names == []
    anew = {**options, "num_gpu_blocks_override": pages(bundle), "compilation_cache_dir": ""}
    with compilations() as seen, LLM("demo", **anew) as llm:
        compiled = answers(llm, lora)
    assert len(seen) >= 6, "the count counts"
    assert from_bundle == compiled


def pages(bundle: Path) -> int:
    return int(json.loads((bundle / "manifest.json").read_text())["num_pages"])


def test_what_is_in_a_bundle(bundle: Path) -> None:
    programs = [
        "copy_pages", "empty_state", "listed_logprobs", "prompt_logprobs", "sample_constrained", "set_bias",
        "set_pages", "set_row", "step_1", "step_8",
    ]  # fmt: skip
    assert {path.name for path in bundle.iterdir()} == {"manifest.json", *(f"{name}.bin" for name in programs)}
    assert bundle.stat().st_mode & 0o777 == 0o777 & ~umask()


def umask() -> int:
    before = os.umask(0)
    os.umask(before)
    return before


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def edit(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """Change a manifest, as somebody might who can write it."""

    def apply(folder: Path) -> None:
        manifest = json.loads((folder / "manifest.json").read_text())
        change(manifest)
        (folder / "manifest.json").write_text(json.dumps(manifest))

    return apply


def replace_program(folder: Path) -> None:
    """A file that is not an executable, under a checksum that fits."""
    data = pickle.dumps(print)
    (folder / "step_8.bin").write_bytes(data)
    saved = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    edit(lambda manifest: manifest["executables"]["step_8"].update(saved))(folder)


def call_of(manifest: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = manifest["executables"]["step_8"]["call"]
    return found


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (shutil.rmtree, "no such folder; `jaxllm compile` makes one"),
        (lambda folder: (folder / "manifest.json").unlink(), "not a bundle of executables"),
        (lambda folder: (folder / "manifest.json").write_text("{"), "invalid: Input data was truncated"),
        (lambda folder: (folder / "step_8.bin").unlink(), "step_8.bin: missing"),
        (lambda folder: (folder / "step_8.bin").write_bytes(b""), "corrupt: 0 bytes instead of"),
        (lambda folder: flip(folder / "step_8.bin"), "its checksum is wrong"),
        (edit(lambda manifest: manifest["executables"].pop("step_8")), "incomplete: it lacks step_8"),
        (edit(lambda manifest: manifest["engine"].update(jax="0.1")), "jax: 0.1 in the bundle"),
        (edit(lambda manifest: manifest["engine"].update(platform="tpu")), "platform: tpu in the bundle, cpu here"),
        (edit(lambda manifest: manifest["engine"].update(model_config="x")), "model_config: for another model"),
        (edit(lambda manifest: manifest["engine"]["cpu_features"].append("avx9")), "this CPU lacks (avx9)"),
        (edit(lambda manifest: call_of(manifest)["kept"].pop()), "other arguments or results than this engine's"),
        (edit(lambda manifest: call_of(manifest)["outputs"].pop()), "other arguments or results than this engine's"),
        (edit(lambda manifest: call_of(manifest)["outputs"][0].update(dtype="int99")), "unknown array dtype 'int99'"),
        (edit(lambda manifest: call_of(manifest)["outputs"][0].update(split=["x"])), "this engine has none"),
        (replace_program, "the runtime rejects executable jit(step_8_tokens)"),
    ],
    ids=[
        "no folder", "no manifest", "broken manifest", "no file", "empty file", "flipped bit", "incomplete",
        "other jax", "other platform", "other model", "other cpu", "fewer arguments", "fewer results", "unknown type",
        "a mesh", "a pickle",
    ],
)  # fmt: skip
def test_a_bundle_that_does_not_fit_is_refused(copy: Path, damage: Callable[[Path], None], message: str) -> None:
    damage(copy)
    with pytest.raises(ConfigError) as error:
        LLM("demo", **OPTIONS, executables=str(copy))
    assert message in str(error.value)
    assert str(copy) in str(error.value)


def test_every_difference_is_named_with_the_remedy(bundle: Path) -> None:
    options = {**OPTIONS, "max_num_seqs": 3, "num_gpu_blocks_override": 99}
    with pytest.raises(ConfigError) as error:
        LLM("demo", **options, executables=str(bundle))
    message = str(error.value)
    assert "max_num_seqs: 2 in the bundle, 3 here" in message
    assert f"num_gpu_blocks: {pages(bundle)} in the bundle, 99 here" in message
    assert (
        "Pass the options it was compiled with, compile it again (`jaxllm compile`), or omit --executables" in message
    )


def test_a_kv_cache_that_does_not_fit_here(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxllm.executor.bundles.cpu_free_bytes", lambda _: 2**20)
    with pytest.raises(CapacityError, match=r"they need 0\.\d+ GiB of memory, .* but only 0\.00 GiB are free"):
        LLM("demo", **OPTIONS, executables=str(bundle))


def test_an_older_bundle_is_replaced_and_anything_else_left_alone(
    copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = copy.parent / "other"
    other.mkdir()
    (other / "thesis.txt").write_text("do not delete")
    assert cli.main(["compile", "--output", str(other), *FLAGS]) == 2
    assert "the folder is neither empty nor a bundle" in capsys.readouterr().err
    assert cli.main(["compile", "--output", str(other / "thesis.txt"), *FLAGS]) == 2
    assert "is a file" in capsys.readouterr().err
    assert (other / "thesis.txt").read_text() == "do not delete"

    # A failure while writing leaves the old one, and nothing alongside it.
    def full(_: Any) -> Any:
        raise OSError(28, "No space left on device")

    before = (copy / "manifest.json").read_bytes()
    monkeypatch.setattr("jaxllm.bundle.write.save", full)
    monkeypatch.setattr(Executables, "compiling", lambda *_: nullcontext())
    monkeypatch.setattr(Executables, "get", lambda *_: None)
    assert cli.main(["compile", "--output", str(copy), *FLAGS]) == 2
    assert "cannot be written: [Errno 28] No space left on device" in capsys.readouterr().err
    assert sorted(path.name for path in copy.parent.iterdir()) == ["copy", "other"]
    assert (copy / "manifest.json").read_bytes() == before


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["demo", "--model", "x"], "the model is given twice: 'demo' and --model 'x'"),
        (["--device", "v6f"], "--device v6f: unknown; did you mean 'v6e'"),
        (["--device", "h200"], "only TPUs can be planned without one (v4, v5e, v5p, v6e, tpu7x)"),
        (["--topology", "2x2"], "--topology 2x2: requires a TPU as --device"),
        (["missing/folder"], "missing/folder"),
    ],
)
def test_wrong_arguments(tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], message: str) -> None:
    assert cli.main(["compile", *flags, "--output", str(tmp_path / "bundle")]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
