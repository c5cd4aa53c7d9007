"""The demo model that sees as it was trained, compared with transformers and with what is in the pictures."""

from pathlib import Path
from random import Random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from transformers import Idefics3ForConditionalGeneration

from jaxllm.models.checkpoint.find_model import find_model
from scripts.demo_vision import chat, evaluate, export
from scripts.demo_vision.network import logits, rows_of
from scripts.demo_vision.questions import described
from scripts.demo_vision.scenes import PLACES, SIDE, Scene, Thing, draw_scene, picture
from scripts.demo_vision.training import example
from tests.quick import FAST

FOLDER = find_model("demo-vision")
FLOOR = 0.85
"""Of the questions below; see the card for the figure of many."""


def _id_of(tokenizer: Tokenizer, token: str) -> int:
    found = tokenizer.token_to_id(token)
    assert found is not None
    return found


def test_training_computes_what_transformers_does() -> None:
    params, shape, vision, tokenizer, _ = export.load(FOLDER)
    made = example(tokenizer, vision, Random(5))
    prompt = made.turns[0].prompt
    first = prompt.index(_id_of(tokenizer, chat.IMAGE))
    rows = rows_of(params, vision, jnp.asarray(made.pixels[None]))
    found = logits(params, shape, jnp.array([prompt]), rows, first)
    model = Idefics3ForConditionalGeneration.from_pretrained(FOLDER, dtype=torch.float32).eval()
    pixels = torch.from_numpy(made.pixels.transpose(2, 0, 1) / np.float32(127.5) - 1)[None, None]
    with torch.no_grad():
        wanted = model(input_ids=torch.tensor([prompt]), pixel_values=pixels).logits
    np.testing.assert_allclose(found, wanted, atol=1e-3, rtol=1e-4)


# `tests/e2e/images/test_demo_vision.py` has an engine say what is in a picture.
@pytest.mark.exhaustive
def test_answers_about_held_out_pictures_are_mostly_right(monkeypatch: pytest.MonkeyPatch) -> None:
    # Every token of an answer has all tokens of 64 texts computed.
    plain: Any = evaluate._likeliest
    likeliest = jax.jit(plain.__wrapped__, static_argnums=(0, 1), compiler_options=FAST)
    monkeypatch.setattr(evaluate, "_likeliest", likeliest)
    params, shape, vision, tokenizer, _ = export.load(FOLDER)
    figures = evaluate.evaluate(params, shape, vision, tokenizer, 64)
    assert sum(asked for asked, _ in figures.values()) == 64
    assert sum(right for _, right in figures.values()) >= FLOOR * 64


def test_saved_weights_come_back(tmp_path: Path) -> None:
    params, shape, vision, tokenizer, run = export.load(FOLDER)
    export.save_files(tokenizer, shape, vision, tmp_path)
    export.save_weights(params, vision, tmp_path, run)
    shipped = {path.name for path in FOLDER.iterdir() if path.suffix != ".md"}
    assert {path.name for path in tmp_path.iterdir()} == shipped
    for name in shipped - {"model.safetensors"}:
        assert (tmp_path / name).read_bytes() == (FOLDER / name).read_bytes(), name
    again, *_, note = export.load(tmp_path)
    assert (note, sorted(again)) == (run, sorted(params))
    assert all(np.array_equal(again[name], params[name]) for name in params)


def test_the_model_is_small() -> None:
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= 4_000_000


def test_things_of_a_scene_are_in_places_of_their_own() -> None:
    random = Random(0)
    for _ in range(200):
        scene = draw_scene(random)
        places = [PLACES.index(thing.place) for thing in scene.things]
        assert places == sorted(set(places))
        assert picture(scene, random).shape == (SIDE, SIDE, 3)


def test_a_scene_is_described_in_order() -> None:
    things = (Thing("star", "orange", "top left"), Thing("cross", "blue", "top right"))
    assert described(Scene(things, "grey")) == "An orange star and a blue cross on a grey background."
    assert described(Scene(things[1:], "white")) == "A blue cross on a white background."
