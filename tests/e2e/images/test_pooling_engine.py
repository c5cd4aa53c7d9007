"""Vectors of prompts with images: those of transformers, whatever else is pooled, with nothing compiled on the way."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from jaxllm.config import EngineConfig
from jaxllm.errors import RequestError
from jaxllm.load import load_engine
from jaxllm.pooling.engine import PoolingEngine
from jaxllm.pooling.params import PoolingParams
from jaxllm.pooling.request import PoolingRequest
from jaxllm.requests.media import PromptMedia
from tests.e2e.images.qwen import FAMILIES, inputs_of, save
from tests.e2e.images.qwen_prompts import IMAGE, Parts, drawn_prompts, item, pixels, token_ids
from tests.jaxllm.pooling.driving import run

STATES = PoolingParams(task="token_embed", normalize=False)
PROMPTS: list[Parts] = [[1, 5, pixels(0, 3, 5), 7, 8], [1, 9, 10, 11], [7], [pixels(1, 6, 2), 3], *drawn_prompts()[:3]]

SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("qwen2_5_vl", "qwen3_5")]


@pytest.fixture(scope="module", params=["qwen2_vl", "qwen3_vl", *SLOW])
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The folder of a model, and transformers' model."""
    folder = tmp_path_factory.mktemp("seeing")
    return folder, save(FAMILIES[request.param], folder)


@pytest.fixture(scope="module")
def engine(family: tuple[Path, Any]) -> Iterator[PoolingEngine]:
    """With a pool that holds the images of one or two of the longest prompts."""
    options = {
        "runner": "pooling", "max_model_len": 160, "max_num_seqs": 8, "max_num_batched_tokens": 160,
        "media_pool_tokens": 64, "optimization_level": 0, "strict_compilation": True, "compilation_cache_dir": "",
    }  # fmt: skip
    made = load_engine(EngineConfig.from_options({"model": str(family[0]), **options}))
    assert isinstance(made, PoolingEngine)
    yield made
    made.close()


def _request(name: object, prompt: Parts, params: PoolingParams | None = None) -> PoolingRequest:
    ids = np.array(token_ids(prompt), np.int32)
    made = PoolingRequest(request_id=str(name), prompt_token_ids=ids, params=params or PoolingParams())
    images = tuple(item(part) for part in prompt if not isinstance(part, int))
    if images:
        made.media = PromptMedia.of(images, ids, IMAGE, 16)
    return made


def _states(model: Any, prompt: Parts) -> np.ndarray:
    model.model.rope_deltas = None
    with torch.no_grad():
        found: np.ndarray = model.model(**inputs_of(prompt, model)).last_hidden_state[0].numpy()
    return found


def test_vectors_are_those_of_transformers(engine: PoolingEngine, family: tuple[Path, Any]) -> None:
    before = engine.stats().num_compilations
    found = run(engine, [_request(number, prompt) for number, prompt in enumerate(PROMPTS)])
    states = run(engine, [_request(number, prompt, STATES) for number, prompt in enumerate(PROMPTS)])
    for prompt, vector, tokens in zip(PROMPTS, found, states, strict=True):
        wanted = _states(family[1], prompt)
        np.testing.assert_allclose(tokens, wanted, atol=1e-4, rtol=1e-4)
        np.testing.assert_allclose(vector, wanted[-1] / np.linalg.norm(wanted[-1]), atol=1e-5, rtol=0)
    stats = engine.stats()
    assert stats.num_compilations == before
    assert engine._media is not None
    engine._media.pool.check_integrity()
    # All images of the last text are still there.
    (again,) = run(engine, [_request("again", PROMPTS[-1])])
    assert np.array_equal(again, found[-1]) or np.allclose(again, found[-1], atol=1e-6)
    assert engine.stats().image_hits >= stats.image_hits + 2


def test_texts_that_end_early_give_their_images_back(engine: PoolingEngine) -> None:
    for number, prompt in enumerate(PROMPTS):
        engine.add_request(_request(f"gone {number}", prompt))
    engine.step()
    assert engine._media is not None
    assert engine.unfinished_ids()
    engine.abort_request([f"gone {number}" for number in range(len(PROMPTS))])
    while engine.has_unfinished_requests():
        engine.step()
    assert not engine._media.pool.num_pinned
    engine._media.pool.check_integrity()


def test_a_fault_of_an_image_ends_its_text_alone(engine: PoolingEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert engine._media is not None
    calls, broken = engine._media._calls, item(pixels(77, 2, 2)).digest
    encode = calls.encode

    def failing(given: Any, rows: Any) -> Any:
        if given.digest == broken:
            raise ValueError("broken")
        return encode(given, rows)

    monkeypatch.setattr(calls, "encode", failing)
    engine.add_request(_request("broken", [1, pixels(77, 2, 2), 3]))
    engine.add_request(_request("whole", [1, pixels(78, 2, 2), 3]))
    outputs: dict[str, Any] = {}
    while engine.has_unfinished_requests():
        outputs.update((output.request_id, output) for output in engine.step())
    assert outputs["broken"].is_fault
    assert outputs["whole"].data is not None
    assert not engine._media.pool.num_pinned


def test_what_is_refused(engine: PoolingEngine) -> None:
    with pytest.raises(RequestError, match="holds at most 64"):
        engine.add_request(_request("many", [1, *[pixels(100 + seed, 5, 5) for seed in range(3)]]))
    with pytest.raises(RequestError, match=r"image of 288 patches .* at most 256 \(max_image_patches\)"):
        engine.add_request(_request("large", [1, pixels(0, 8, 9), 3]))
