"""Images in prompts: the tokens of transformers, whatever else is in the batch."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import Idefics3ForConditionalGeneration

from jaxllm.engine.engine import Engine
from jaxllm.errors import RequestError
from jaxllm.requests.media import ImageCrop, MediaItem
from tests.conftest import RunPython
from tests.e2e.driving import make_engine, request, run
from tests.e2e.images.prompts import Parts, drawn_prompts, pixels, seeing
from tests.e2e.images.seeing import expected, save_small_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("seeing")
    save_small_model(found)
    return found


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[Engine]:
    """Small enough for chunks and preemption: 16 pages of 16 tokens, chunks of at most 16."""
    made = make_engine(
        model=str(folder), max_model_len=192, max_num_seqs=4, max_num_batched_tokens=16, num_gpu_blocks_override=17,
        media_pool_tokens=48,
    )  # fmt: skip
    yield made
    made.close()


@pytest.fixture(scope="module")
def reference(folder: Path) -> Any:
    return Idefics3ForConditionalGeneration.from_pretrained(folder).eval()


def test_one_image(engine: Engine, reference: Any) -> None:
    prompt: Parts = [1, 5, pixels(0), 7, 8]
    found = run(engine, [seeing("one", prompt, max_tokens=12)])
    assert found["one"].token_ids == expected(reference, prompt, 12)


def test_another_image_gives_other_tokens(engine: Engine) -> None:
    requests = [seeing(seed, [1, 5, pixels(seed), 7, 8], max_tokens=12) for seed in range(4)]
    found = run(engine, requests)
    assert len({tuple(answer.token_ids) for answer in found.values()}) == 4


def test_many_at_once_equal_each_alone(engine: Engine, reference: Any) -> None:
    prompts = drawn_prompts()
    found = run(engine, [seeing(i, prompt, max_tokens=48) for i, prompt in enumerate(prompts)])
    for i, prompt in enumerate(prompts):
        assert found[str(i)].token_ids == expected(reference, prompt, 48), i
    assert engine.scheduler.num_preemptions > 0
    assert engine.media is not None
    engine.media.pool.check_integrity()


def test_text_next_to_images(engine: Engine, reference: Any) -> None:
    text = [1, 9, 10, 11]
    requests = [
        request("text", text, max_tokens=8, temperature=0, ignore_eos=True),
        seeing("image", [1, pixels(3), 4], max_tokens=8),
    ]
    assert run(engine, requests)["text"].token_ids == expected(reference, text, 8)


def test_swapped_images_share_no_pages(engine: Engine, reference: Any) -> None:
    begin, end = [1, *range(20, 40)], list(range(50, 60))
    first, second = pixels(11), pixels(12)
    for name, order in (("a", (first, second)), ("b", (second, first)), ("c", (first, second))):
        prompt: Parts = [*begin, order[0], 3, order[1], *end]
        answer = run(engine, [seeing(name, prompt, max_tokens=10)])[name]
        assert answer.token_ids == expected(reference, prompt, 10)
        # The page before the images is shared by all; what follows by the same images only.
        assert answer.num_cached_tokens == {"a": 0, "b": 16, "c": 32}[name]


def test_ten_distinct_images_of_many_are_encoded_once(engine: Engine) -> None:
    assert engine.media is not None
    pool = engine.media.pool
    before = pool.num_queries, pool.num_hits
    requests = [seeing(f"d{i}", [1, pixels(100 + i % 10), i % 7 + 3], max_tokens=1) for i in range(100)]
    run(engine, requests)
    assert pool.num_queries - before[0] == 100
    assert pool.num_hits - before[1] == 90


def test_more_images_than_the_pool_holds(engine: Engine) -> None:
    too_many = seeing("many", [1, *[pixels(200 + i) for i in range(13)], 3], max_tokens=1)
    with pytest.raises(RequestError, match="the images take 52 tokens, but the engine holds at most 48"):
        engine.add_request(too_many)


def test_several_sequences_of_a_prompt(engine: Engine, reference: Any) -> None:
    prompt: Parts = [1, 5, pixels(31, crops=2), 7, 8]
    requests = [seeing(i, prompt, max_tokens=6, seed=i, temperature=0 if i else 1) for i in range(3)]
    found = run(engine, requests)
    assert found["1"].token_ids == found["2"].token_ids == expected(reference, prompt, 6)


def test_an_aborted_request_leaves_nothing(engine: Engine) -> None:
    assert engine.media is not None
    pool = engine.media.pool
    engine.reset_prefix_cache()
    # Two crops are more than a step encodes: the image is half there.
    engine.add_request(seeing("gone", [1, pixels(41, crops=4), 3], max_tokens=4))
    engine.step()
    engine.abort_request("gone")
    engine.step()
    assert not engine.has_unfinished_requests()
    pool.check_integrity()
    found = run(engine, [seeing("again", [1, pixels(41, crops=4), 3], max_tokens=4)])
    assert len(found["again"].token_ids) == 4


def test_a_request_whose_image_fails_ends_alone(engine: Engine, reference: Any) -> None:
    good: Parts = [1, 5, pixels(51), 7]
    bad = seeing("bad", [1, pixels(52), 3], max_tokens=4)
    assert bad.media is not None
    broken = MediaItem.of((ImageCrop(np.zeros((16, 5), np.uint8), 4, 4),), 4)
    bad.media = replace(bad.media, items=(broken,))
    found = run(engine, [bad, seeing("good", good, max_tokens=5)])
    assert found["bad"].finish_reason == "abort"
    assert found["good"].token_ids == expected(reference, good, 5)


def test_sleep_and_new_weights(folder: Path, reference: Any) -> None:
    engine = make_engine(model=str(folder), max_model_len=64, max_num_seqs=2, enable_sleep_mode=True)
    prompt: Parts = [1, 5, pixels(61), 7]
    wanted = expected(reference, prompt, 6)
    assert run(engine, [seeing("before", prompt, max_tokens=6)])["before"].token_ids == wanted
    for level in (1, 2):
        engine.control.sleep(level)
        engine.control.wake_up()
        assert run(engine, [seeing(level, prompt, max_tokens=6)])[str(level)].token_ids == wanted
    assert engine.media is not None
    # The pool was empty each time.
    assert (engine.media.pool.num_queries, engine.media.pool.num_hits) == (3, 0)
    engine.close()


def test_the_language_model_alone(folder: Path, reference: Any) -> None:
    engine = make_engine(model=str(folder), max_model_len=64, max_num_seqs=2, language_model_only=True)
    text = [1, 9, 10, 11]
    found = run(engine, [request("text", text, max_tokens=8, temperature=0, ignore_eos=True)])
    assert found["text"].token_ids == expected(reference, text, 8)
    with pytest.raises(RequestError, match="this model accepts text only"):
        engine.add_request(seeing("image", [1, pixels(0), 2], max_tokens=1))
    engine.close()


def test_several_devices(folder: Path, reference: Any, run_python: RunPython) -> None:
    script = str(Path(__file__).with_name("see_on_devices.py"))
    done = run_python(script, str(folder), "data=2", "model=2", env={"PYTHONPATH": "."}, devices=2, timeout=900)
    assert done.returncode == 0, done.stderr
    wanted = [expected(reference, prompt, 24) for prompt in drawn_prompts()]
    for line in done.stdout.splitlines():
        assert json.loads(line) == wanted
