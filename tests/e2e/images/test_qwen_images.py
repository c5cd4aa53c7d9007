"""Qwen's models that see: the tokens of transformers for images of any size, whatever else is in the batch."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxllm.engine.engine import Engine
from jaxllm.errors import RequestError
from tests.e2e.driving import make_engine, run
from tests.e2e.images.qwen import FAMILIES, expected, save
from tests.e2e.images.qwen_prompts import IMAGE, Parts, drawn_prompts, pixels, seeing
from tests.thinned import thinned

# These differ from others in what tests of towers, of families and of drafts compare.
OTHERS = ("qwen2_vl", "qwen2_5_vl")


@pytest.fixture(scope="module", params=thinned(("qwen3_vl", "qwen3_5"), OTHERS))
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The folder of a model, and transformers' model."""
    folder = tmp_path_factory.mktemp("seeing")
    return folder, save(FAMILIES[request.param], folder)


@pytest.fixture(scope="module")
def engine(family: tuple[Path, Any]) -> Iterator[Engine]:
    """Small enough for chunks and preemption: 12 pages of 16 tokens, chunks of at most 16."""
    made = make_engine(
        model=str(family[0]), max_model_len=192, max_num_seqs=4, max_num_batched_tokens=16, num_gpu_blocks_override=13,
        media_pool_tokens=64,
    )  # fmt: skip
    yield made
    made.close()


def test_one_image_and_none(engine: Engine, family: tuple[Path, Any]) -> None:
    prompts: list[Parts] = [
        [1, 5, pixels(0, 3, 5), 7, 8], [1, 9, 10, 11], [pixels(1, 6, 2), 3], [1, pixels(2, 1, 1), 4]
    ]  # fmt: skip
    for prompt in prompts:
        found = run(engine, [seeing("one", prompt, max_tokens=12)])
        assert found["one"].token_ids == expected(family[1], prompt, 12)


def test_many_at_once_equal_each_alone(engine: Engine, family: tuple[Path, Any]) -> None:
    prompts = drawn_prompts()
    text: Parts = [1, 9, 10, 11]
    requests = [seeing(i, prompt, max_tokens=40) for i, prompt in enumerate(prompts)]
    preempted = engine.scheduler.num_preemptions
    found = run(engine, [*requests, seeing("text", text, max_tokens=40)])
    for i, prompt in enumerate(prompts):
        assert found[str(i)].token_ids == expected(family[1], prompt, 40), i
    assert found["text"].token_ids == expected(family[1], text, 40)
    assert engine.scheduler.num_preemptions > preempted
    assert engine.media is not None
    engine.media.pool.check_integrity()


def test_prefixes_with_images_of_other_shapes(engine: Engine, family: tuple[Path, Any]) -> None:
    engine.reset_prefix_cache()
    begin, end = [1, *range(20, 40)], list(range(50, 70))
    wide, high = pixels(11, 2, 6), pixels(11, 6, 2)
    # As many rows of the same numbers, but their places, and those of what follows, are others.
    assert wide.size == high.size
    for name, image in (("a", wide), ("b", high), ("c", wide)):
        prompt: Parts = [*begin, image, *end]
        answer = run(engine, [seeing(name, prompt, max_tokens=10)])[name]
        assert answer.token_ids == expected(family[1], prompt, 10)
        if not engine.pages.snapshots:
            assert answer.num_cached_tokens == {"a": 0, "b": 16, "c": 48}[name]


def test_several_sequences_and_beams(engine: Engine, family: tuple[Path, Any]) -> None:
    prompt: Parts = [1, 5, pixels(31, 4, 3), 7, 8]
    requests = [seeing(i, prompt, max_tokens=6, seed=i, temperature=0 if i else 1) for i in range(3)]
    found = run(engine, requests)
    assert found["1"].token_ids == found["2"].token_ids == expected(family[1], prompt, 6)


def test_an_image_in_parts_is_refused(engine: Engine) -> None:
    broken = seeing("apart", [1, pixels(0, 2, 2), 3])
    assert broken.media is not None
    ids = broken.prompt_token_ids
    places = np.flatnonzero(ids == IMAGE)
    ids[[places[0], places[0] - 1]] = ids[[places[0] - 1, places[0]]]
    ids[[places[0] - 1, 0]] = ids[[0, places[0] - 1]]
    broken.media = type(broken.media).of(broken.media.items, ids, IMAGE, 16)
    with pytest.raises(RequestError, match="must be next to each other"):
        engine.add_request(broken)
    with pytest.raises(RequestError, match=r"image of 288 patches .* at most 256 \(max_image_patches\)"):
        engine.add_request(seeing("large", [1, pixels(0, 8, 9), 3]))


# `test_qwen_drafts.py` has Qwen3.5.
@pytest.mark.parametrize("family", thinned(("qwen3_vl",), ("qwen3_5", *OTHERS)), indirect=True, scope="module")
def test_drafts_change_nothing(family: tuple[Path, Any]) -> None:
    drafts = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1}
    engine = make_engine(
        model=str(family[0]), max_model_len=192, max_num_seqs=4, max_num_batched_tokens=32, speculative_config=drafts
    )
    prompt: Parts = [1, 5, 6, 5, pixels(3, 3, 4), 5, 6, 5, 6, 5]
    found = run(engine, [seeing(i, prompt, max_tokens=24) for i in range(2)])
    wanted = expected(family[1], prompt, 24)
    assert found["0"].token_ids == found["1"].token_ids == wanted
    engine.close()
