"""The programs of docs/examples, run as they are printed; those of Ray have tests of their own."""

import re
import runpy
from collections.abc import Collection
from pathlib import Path

import pytest

from jaxllm.config import EngineConfig
from tests.conftest import ROOT, RunPython
from tests.serving.server_process import SMALL, running

FOLDER = ROOT / "docs" / "examples"
MEDIA = {
    "audio_language.py",
    "openai_chat_completion_client_for_multimodal.py",
    "openai_transcription_client.py",
    "vision_language.py",
}
"""Programs for models that see or hear: `tests/e2e/images` and `tests/e2e/sound` run them."""
WITH_A_HEAD = "offline_inference_mlpspeculator.py"
"""The one whose drafter does not ship with jaxllm: `tests/models/drafters/test_mlp_speculator.py` runs it."""
WITH_SCORES = "reinforcement_learning.py"
"""The one that `tests/e2e/text/test_reinforcement_learning.py` runs, and whose scores it looks at."""
PROGRAMS = sorted({path.name for path in FOLDER.glob("*.py")} - MEDIA - {WITH_A_HEAD})
CLIENTS = [name for name in PROGRAMS if name in ("api_client.py", "token_ids.py") or name.startswith("openai_")]
EMBEDDING_CLIENT = "openai_embedding_client.py"
TRAINS = "lora_training.py"
"""The one that needs torch, for PEFT."""
EMBEDS_CLIENT = "prompt_embed_inference_with_openai_client.py"
OFFLINE = sorted({*PROGRAMS} - {*CLIENTS, EMBEDS_CLIENT})
ALONE = ("data_parallel.py", TRAINS)
"""Programs with a process each; the others share one, where they find modules and programs loaded. But for one program,
engines have the options of `QUICK`, which change no interface."""
QUICK = {"optimization_level": 0, "enforce_eager": True}
"""Nearly all the time of an engine's start goes into compiling."""
TOGETHER = [name for name in OFFLINE if name not in (*ALONE, "beam_search.py", WITH_SCORES)]

PRINTED = {
    "api_client.py": "Once upon a time",
    "async_llm_streaming.py": "[2] ",
    "beam_search.py": "-",
    "data_parallel.py": "7 ",
    "llm_engine_example.py": "2 [",
    "logits_processor.py": "with it: ",
    "lora_training.py": "with the adapter:  river, and the cat's favourite word is",
    "lora_with_quantization_inference.py": "adapter: ",
    "multilora_inference.py": "4 (lora-2): ",
    "offline_chat.py": "of several: ",
    "offline_chat_with_tools.py": "add({'a': ",
    "offline_inference.py": "'The red fox' -> ",
    "offline_inference_embedding.py": "cosine: ",
    "offline_inference_quantized.py": " ",
    "offline_inference_with_prefix.py": "forgotten: True",
    "openai_chat_completion_client.py": "42",
    "openai_chat_completion_client_with_tools.py": "add {'a': ",
    "openai_chat_completion_structured_outputs.py": "schema: {'name': ",
    "openai_completion_client.py": "1 ",
    "openai_embedding_client.py": "1 128 [",
    "openai_responses_client.py": "42",
    "prompt_embed_inference_with_openai_client.py": "the same as the text: True",
    "prompt_embed_offline.py": "the same as the text: True",
    "reinforcement_learning.py": "step ",
    "reproducibility.py": "the same: True",
    "save_sharded_state.py": "the same: True",
    "simple_profiling.py": "trace in ",
    "spec_decode.py": "the same without guesses: True",
    "spec_decode_eagle3.py": "the same without guesses: True",
    "structured_outputs.py": 'json: {"name":',
    "token_ids.py": "reply: ",
}
"""A part of the output of each program."""


def test_the_page_lists_every_program() -> None:
    page = (FOLDER / "index.md").read_text(encoding="utf-8")
    listed = [line.split("`")[1] for line in page.splitlines() if line.startswith("| `") and ".py` |" in line]
    listed = [name for name in listed if "/" not in name]
    assert sorted(listed) == sorted({*PROGRAMS, *MEDIA, WITH_A_HEAD})
    assert sorted(PRINTED) == PROGRAMS


def test_one_in_this_process(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    given = EngineConfig.from_options
    monkeypatch.setattr(EngineConfig, "from_options", lambda options, *more: given({**QUICK, **options}, *more))
    runpy.run_path(str(FOLDER / "offline_inference.py"), run_name="__main__")
    assert PRINTED["offline_inference.py"] in capsys.readouterr().out


RUN = f"""
import os, runpy, sys, traceback
from jaxllm.config import EngineConfig
given = EngineConfig.from_options
EngineConfig.from_options = lambda options, *more: given({{**{QUICK}, **options}}, *more)
paths = sys.argv[1:]
sys.path.insert(0, os.path.dirname(paths[0]))
for path in paths:
    print(f"<<{{path}}>>", flush=True)
    sys.argv = [path]
    try:
        runpy.run_path(path, run_name="__main__")
    except BaseException:
        print(traceback.format_exc(), "<failed>")
"""


def together(run_python: RunPython, names: Collection[str], *, devices: int = 1, url: str = "") -> dict[str, str]:
    """The output of each program, which runs after the others in the same process."""
    paths = [str(FOLDER / name) for name in names]
    env = {"JAX_NUM_CPU_DEVICES": str(devices), "OPENAI_BASE_URL": url}
    done = run_python("-c", RUN, *paths, env=env, timeout=900, with_torch=TRAINS in names)
    assert done.returncode == 0, done.stderr
    parts = re.split("^<<(.*)>>$", done.stdout, flags=re.MULTILINE)[1:]
    return {Path(path).name: text for path, text in zip(parts[::2], parts[1::2], strict=True)}


@pytest.fixture(scope="module")
def printed(run_python: RunPython) -> dict[str, str]:
    """The output of all that run together."""
    return together(run_python, TOGETHER)


def check(name: str, printed: str) -> None:
    assert "<failed>" not in printed, printed
    assert PRINTED[name] in printed


@pytest.mark.slow
@pytest.mark.parametrize("name", ALONE)
def test_offline(run_python: RunPython, name: str) -> None:
    check(name, together(run_python, [name], devices=2 if name == "data_parallel.py" else 1)[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", TOGETHER)
def test_offline_together(printed: dict[str, str], name: str) -> None:
    check(name, printed[name])


@pytest.mark.slow
def test_as_users_run_it(run_python: RunPython) -> None:
    """With the options that it has, and in a process that does nothing else."""
    done = run_python(str(FOLDER / "beam_search.py"), env={"JAX_NUM_CPU_DEVICES": "1"})
    assert done.returncode == 0, done.stderr
    check("beam_search.py", done.stdout)


@pytest.mark.slow
def test_clients(run_python: RunPython, tmp_path: Path) -> None:
    with running(tmp_path / "log", *SMALL, "--enable-prompt-embeds") as server:
        names = [name for name in (*CLIENTS, EMBEDS_CLIENT) if name != EMBEDDING_CLIENT]
        for name, printed in together(run_python, names, url=f"{server.url}/v1").items():
            check(name, printed)


@pytest.mark.slow
def test_the_embedding_client(run_python: RunPython, tmp_path: Path) -> None:
    with running(tmp_path / "log", *SMALL, "--runner", "pooling") as server:
        printed = together(run_python, [EMBEDDING_CLIENT], url=f"{server.url}/v1")
        check(EMBEDDING_CLIENT, printed[EMBEDDING_CLIENT])
