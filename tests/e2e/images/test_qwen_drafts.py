"""Drafts and beams of requests whose tokens rotate by places in images: no token changes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from jaxllm.engine.engine import Engine
from jaxllm.engine.features import speculation
from jaxllm.requests.beam_options import BeamOptions
from jaxllm.requests.request import Request
from jaxllm.speculation import device_drafts
from tests.e2e.driving import make_engine, run
from tests.e2e.images.qwen import FAMILIES, expected, inputs_of, save
from tests.e2e.images.qwen_prompts import Parts, pixels, seeing
from tests.e2e.test_beam_search import assert_same
from tests.e2e.test_speculation import ScriptedDrafter, all_of_them

PROMPTS: list[Parts] = [
    [1, 5, 6, 5, pixels(3, 3, 4), 5, 6, 5, 6, 5], [1, 9, 10, 11], [1, pixels(4, 2, 7), 7, pixels(5, 5, 5), 8]
]  # fmt: skip
SMALL = {"max_model_len": 192, "max_num_seqs": 4, "max_num_batched_tokens": 32}


@pytest.fixture(scope="module", params=["qwen3_5", pytest.param("qwen2_vl", marks=pytest.mark.exhaustive)])
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The folder of a model, with a layer for further tokens if there may be one, and transformers' model."""
    folder = tmp_path_factory.mktemp("seeing")
    model = save(FAMILIES[request.param], folder)
    if request.param == "qwen3_5":
        add_further_layer(folder)
    return folder, model


def add_further_layer(folder: Path) -> None:
    """Write a layer that predicts further tokens, like the last one of the model."""
    weights = folder / "model.safetensors"
    tensors, last = load_file(weights), "model.language_model.layers.2."
    one = tensors["model.language_model.norm.weight"]
    joint = np.random.default_rng(0).standard_normal((64, 128)).astype(np.float32) * np.float32(0.1)
    further = {f"mtp.layers.0.{name.removeprefix(last)}": tensors[name] for name in tensors if name.startswith(last)}
    norms = {f"mtp.{name}.weight": one for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden")}
    save_file({**tensors, **further, **norms, "mtp.fc.weight": joint}, weights)


@pytest.fixture(scope="module")
def wanted(family: tuple[Path, Any]) -> dict[str, list[int]]:
    """What transformers answers to each prompt."""
    return {str(i): expected(family[1], prompt, 30) for i, prompt in enumerate(PROMPTS)}


def requests() -> list[Request]:
    return [seeing(i, prompt, max_tokens=30) for i, prompt in enumerate(PROMPTS)]


def test_right_drafts_of_the_host(
    family: tuple[Path, Any], wanted: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(model=str(family[0]), **SMALL, spec_method="ngram", num_speculative_tokens=4)
    answers = run(engine, requests())
    assert {name: answer.token_ids for name, answer in answers.items()} == wanted
    monkeypatch.setattr(speculation, "choose_amounts", all_of_them)
    assert engine._speculation is not None
    for kind in ("right", "some"):
        monkeypatch.setattr(engine._speculation, "_drafter", ScriptedDrafter(answers, kind))
        before = engine.stats().drafts
        found = run(engine, requests())
        assert {name: answer.token_ids for name, answer in found.items()} == wanted
        assert engine.stats().drafts.since(before).num_accepted_tokens > 30
    engine.close()


def test_drafts_of_the_device(
    family: tuple[Path, Any], wanted: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    is_hybrid = "mtp.fc.weight" in load_file(family[0] / "model.safetensors")
    # The model drafts for itself, but sees no images then.
    drafter = {"method": "mtp"} if is_hybrid else {"method": "draft_model", "model": str(family[0])}
    monkeypatch.setattr(speculation, "choose_amounts", all_of_them)
    monkeypatch.setattr(device_drafts, "FIRST_COMPARISON", 10**6)  # it reads every token
    engine = make_engine(model=str(family[0]), **SMALL, speculative_config={**drafter, "num_speculative_tokens": 3})
    for _ in range(2):
        found = run(engine, requests())
        assert {name: answer.token_ids for name, answer in found.items()} == wanted
    if not is_hybrid:
        before = engine.stats().drafts
        run(engine, requests()[1:2])
        counts = engine.stats().drafts.since(before)
        # It is right about text as long as both turn alike.
        assert counts.num_accepted_tokens > 0.9 * counts.num_draft_tokens
    engine.close()


@pytest.fixture(scope="module")
def scan(family: tuple[Path, Any]) -> Iterator[Engine]:
    """An engine that scans its layers."""
    made = make_engine(model=str(family[0]), **SMALL, layer_stack="scan")
    yield made
    made.close()


def test_beams(family: tuple[Path, Any], scan: Engine) -> None:
    prompt = PROMPTS[0]
    options = BeamOptions(width=3, n=3)
    scan.add_request(seeing("beams", prompt, max_tokens=10, beam_search=options))
    found: Any = None
    while scan.has_unfinished_requests():
        for output in scan.step():
            found = output.sequences or found
    inputs = inputs_of(prompt, family[1])
    family[1].model.rope_deltas = None
    with torch.no_grad():
        theirs = family[1].generate(
            **inputs, num_beams=3, num_return_sequences=3, max_new_tokens=10, do_sample=False, eos_token_id=None,
            return_dict_in_generate=True, output_scores=True,
        )  # fmt: skip
    sequences = [each[inputs["input_ids"].shape[1] :] for each in theirs.sequences.tolist()]
    assert_same(found, zip(sequences, theirs.sequences_scores.tolist(), strict=True))


def test_scanned_layers(wanted: dict[str, list[int]], scan: Engine) -> None:
    assert {name: answer.token_ids for name, answer in run(scan, requests()).items()} == wanted
