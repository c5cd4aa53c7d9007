"""Models whose image tokens see one another: the tokens of transformers, however prompts are cut and shared."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from jaxllm.config import EngineConfig
from jaxllm.engine.engine import Engine
from jaxllm.errors import ConfigError, RequestError
from jaxllm.executor.resolve import resolve_config
from tests.e2e.driving import make_engine, run
from tests.e2e.images.prompts import Parts
from tests.e2e.images.spanning import CAUSAL, MODELS, Spanning, load
from tests.thinned import thinned

LENGTH, SEQUENCES = 192, 4


@dataclass(frozen=True)
class Saved:
    """A model, where it is, and transformers' own."""

    model: Spanning
    folder: Path
    reference: Any

    def expected(self, prompt: Parts, count: int) -> list[int]:
        """See `Spanning.expected`."""
        return self.model.expected(self.reference, prompt, count)

    def engine(self, **options: object) -> Engine:
        """An engine for requests of 192 tokens, unless told."""
        defaults = {"max_model_len": LENGTH, "max_num_seqs": SEQUENCES}
        return make_engine(model=str(self.folder), **{**defaults, **options})


def save(model: Spanning, folder: Path) -> Saved:
    """Write a model."""
    model.save(folder)
    return Saved(model, folder, load(folder))


# One of each kind of spans; `test_families.py` has answers of others.
FEW = ("gemma3", "paligemma")


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(model, id=model.name, marks=[pytest.mark.exhaustive] * (model.name not in FEW)) for model in MODELS
    ],
)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    return save(request.param, tmp_path_factory.mktemp("spans"))


@pytest.fixture(scope="module")
def engine(saved: Saved) -> Iterator[Engine]:
    made = saved.engine(max_num_batched_tokens=64)
    yield made
    made.close()


def prompts(model: Spanning) -> dict[str, Parts]:
    """One image, two apart, two side by side, none."""
    pixels = model.pixels
    return {
        "one": [1, 5, pixels(0), 7, 8],
        "two": [2, 7, pixels(1), *range(40, 50), pixels(2), 11],
        "side by side": [3, pixels(3), pixels(4), 12, 13],
        "text": [1, 9, 10, 11],
    }


def check_each_alone(saved: Saved, engine: Engine) -> None:
    for name, prompt in prompts(saved.model).items():
        (answer,) = run(engine, [saved.model.seeing(name, prompt, max_tokens=12)]).values()
        assert answer.token_ids == saved.expected(prompt, 12), name


def test_each_alone(saved: Saved, engine: Engine) -> None:
    check_each_alone(saved, engine)


@pytest.mark.parametrize(
    ("model", "backend"),
    [
        pytest.param(MODELS[0], "xla", id="xla"),
        pytest.param(MODELS[1], "reference", id="reference", marks=pytest.mark.exhaustive),
        pytest.param(CAUSAL, "cpu", id="cpu", marks=pytest.mark.exhaustive),
    ],
)
def test_other_attention(model: Spanning, backend: str, tmp_path: Path) -> None:
    """And a model of the same family whose image tokens see no later ones."""
    saved = save(model, tmp_path)
    engine = saved.engine(max_num_batched_tokens=64, attention_backend=backend)
    check_each_alone(saved, engine)
    engine.close()


def test_rows_of_the_tower(saved: Saved, engine: Engine) -> None:
    """As transformers computes them, within 1e-4."""
    crop = saved.model.pixels(9)
    media = engine.media
    assert media is not None
    run(engine, [saved.model.seeing("tower", [1, crop, 2], max_tokens=1)])
    rows = media.pool.rows([saved.model.item(crop)])
    found = torch.from_numpy(np.asarray(engine.runner.calls.state.media_pool)[rows])
    with torch.no_grad():
        outputs = saved.reference.model.get_image_features(**saved.model.pixel_inputs(crop))
    torch.testing.assert_close(found, outputs.pooler_output[0], rtol=0, atol=1e-4)


def test_all_at_once_preempted_and_cut(saved: Saved) -> None:
    """Steps of every size from the smallest on, and too few pages for all requests."""
    every = prompts(saved.model)
    least = 16 + SEQUENCES - 1 if saved.model.spans == "images" else 64
    if least < 32:
        del every["side by side"]
    wanted = {name: saved.expected(prompt, 30) for name, prompt in every.items()}
    # Gemma 3 has three page tables here.
    pages = 17 if saved.model.name == "gemma3" else 13
    # Each budget with a model of one kind of spans, and both with all where every case is asked for.
    budgets = (least, least + 8) if saved.model.name in ("gemma3", "paligemma2") else (least + 8, least)
    for budget in thinned(budgets[:1], budgets[1:]):
        engine = saved.engine(max_num_batched_tokens=budget, max_model_len=96, num_gpu_blocks_override=pages)
        twice = [(name, prompt) for _ in range(2) for name, prompt in every.items()]
        found = run(engine, [saved.model.seeing(i, prompt, max_tokens=30) for i, (_, prompt) in enumerate(twice)])
        for i, (name, _) in enumerate(twice):
            assert found[str(i)].token_ids == wanted[name], name
        assert engine.scheduler.num_preemptions > 0
        engine.close()


def test_prefixes(saved: Saved, engine: Engine) -> None:
    """Pages are shared by prompts with the same span, and by what comes before a span."""
    model, pixels = saved.model, saved.model.pixels
    begin = list(range(20, 36))
    first: Parts = [*begin, pixels(20), *range(60, 70)]
    cases: dict[str, tuple[Parts, dict[str | None, int]]] = {
        "first": (first, {"images": 0, "prompt": 0}),
        "again": (first, {"images": 32, "prompt": 32}),
        "another image": ([*begin, pixels(21), *range(60, 70)], {"images": 16, "prompt": 0}),
        "the image and more": ([*begin, pixels(20), *range(60, 76)], {"images": 32, "prompt": 0}),
        "one more beside it": ([*begin, pixels(20), pixels(22), 5], {"images": 16, "prompt": 0}),
        "shifted": ([7, *begin, pixels(20), 5], {"images": 0, "prompt": 0}),
    }
    engine.reset_prefix_cache()
    for name, (prompt, cached) in cases.items():
        answer = run(engine, [model.seeing(name, prompt, max_tokens=8)])[name]
        assert answer.token_ids == saved.expected(prompt, 8), name
        assert answer.num_cached_tokens == cached[model.spans or ""], name


def test_a_prefix_may_end_within_a_span(saved: Saved, engine: Engine) -> None:
    """The rest of the span is computed in one step, and sees what is cached of it."""
    engine.reset_prefix_cache()
    prompt: Parts = [*range(20, 28), saved.model.pixels(30), 5, 6]
    for name, cached in (("first", 0), ("again", 16)):
        answer = run(engine, [saved.model.seeing(name, prompt, max_tokens=8)])[name]
        assert (answer.token_ids, answer.num_cached_tokens) == (saved.expected(prompt, 8), cached)


def test_an_answer_becomes_part_of_a_prompt(saved: Saved, engine: Engine) -> None:
    """Tokens that were an answer see less than the same ones in a prompt that is one span."""
    engine.reset_prefix_cache()
    prompt: Parts = [4, saved.model.pixels(40), 5, 6]
    answer = run(engine, [saved.model.seeing("answer", prompt, max_tokens=20)])["answer"].token_ids
    longer: Parts = [*prompt, *answer, 7]
    found = run(engine, [saved.model.seeing("longer", longer, max_tokens=8)])["longer"]
    assert found.token_ids == saved.expected(longer, 8)
    assert found.num_cached_tokens == (32 if saved.model.spans == "images" else 0)


def test_several_sequences(saved: Saved, engine: Engine) -> None:
    prompt: Parts = [4, saved.model.pixels(50), 5, 6]
    requests = [saved.model.seeing(i, prompt, max_tokens=6, temperature=i % 2, seed=i) for i in range(4)]
    found = run(engine, requests)
    assert found["0"].token_ids == found["2"].token_ids == saved.expected(prompt, 6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "saved",
    [pytest.param(model, id=model.name, marks=[pytest.mark.exhaustive] * (model.name != "gemma3")) for model in MODELS],
    indirect=True,
    scope="module",
)
def test_drafts(saved: Saved) -> None:
    """Rows of several tokens that are no prompts see no later ones."""
    drafting = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1}
    engine = saved.engine(max_num_batched_tokens=64, speculative_config=drafting)
    every: dict[str, Parts] = {
        "one": [1, 5, saved.model.pixels(60), 7, 8, 7, 8],
        "two": [2, 7, saved.model.pixels(61), 8, 7, saved.model.pixels(62), 8, 7],
        "text": [1, 9, 10, 9, 10, 9],
    }
    found = run(engine, [saved.model.seeing(name, prompt, max_tokens=24) for name, prompt in every.items()])
    for name, prompt in every.items():
        assert found[name].token_ids == saved.expected(prompt, 24), name
    engine.close()


def test_steps_that_are_too_small(saved: Saved) -> None:
    if saved.model.spans == "images":
        message = r"max_num_batched_tokens=18: the 16 tokens of an image are computed in one step.*to at least 19"
    else:
        message = r"at least 19, lower max_num_seqs, or set language_model_only"
    options = {
        "model": str(saved.folder), "max_model_len": LENGTH, "max_num_seqs": SEQUENCES, "max_num_batched_tokens": 18,
    }  # fmt: skip
    with pytest.raises(ConfigError, match=message):
        resolve_config(EngineConfig.from_options(options))
    resolve_config(EngineConfig.from_options({**options, "language_model_only": True}))


def test_spans_that_are_too_long(saved: Saved, engine: Engine) -> None:
    what = "a prompt with images" if saved.model.spans == "prompt" else "images without text between them"
    long: Parts = [*(saved.model.pixels(seed) for seed in range(4)), 5]
    with pytest.raises(RequestError, match=rf"{what} of 6[45] tokens, but the engine takes 61 at most"):
        engine.add_request(saved.model.seeing("long", long, max_tokens=1))


def test_prompts_longer_than_the_window_of_a_prompt_that_is_one_span(saved: Saved) -> None:
    if saved.model.name != "paligemma2":
        pytest.skip("has no window, or spans of images alone")
    engine = saved.engine(max_num_batched_tokens=128)
    with pytest.raises(RequestError, match="the engine takes 64 at most"):
        engine.add_request(saved.model.seeing("long", [saved.model.pixels(0), *range(60)], max_tokens=1))
    engine.close()


def test_the_default_step_has_room_for_an_image(saved: Saved) -> None:
    """And for a token of each other request."""
    for requests, tokens in ((64, 512), (500, 1024)):
        options = {"model": str(saved.folder), "max_model_len": LENGTH, "max_num_seqs": requests}
        assert resolve_config(EngineConfig.from_options(options)).max_num_batched_tokens == tokens
