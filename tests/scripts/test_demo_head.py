"""The head of the demo model as it was trained, compared with one that is put together from transformers' layers."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from jaxllm.models.checkpoint.find_model import find_model
from scripts.demo_head import export, network
from scripts.demo_head.training import acceptance
from scripts.demo_model.export import load as load_model
from scripts.train_demo_head import held_out_batches
from tests.models.drafters.test_eagle3 import K, Reference

FOLDER = find_model("demo-eagle3")


def test_guesses_of_transformers_layers(tmp_path: Path) -> None:
    model, shape, vocabulary, _ = load_model(find_model("demo"))
    params, own, _ = export.load(FOLDER)
    text = "Once upon a time, Mira found a kite near the old mill. Mira found"
    ids = vocabulary.encode(text, add_special_tokens=False).ids
    reference = Reference(FOLDER, nested=False)
    wanted = reference.drafts(ids)
    # The training network takes the tokens that were guessed as given.
    row = np.array([[*ids, *wanted]], np.int32)
    seen = network.see(model, shape, own, jnp.asarray(row), jnp.zeros_like(row))
    found = network.guesses(params, shape, own, seen, K)
    assert [int(logits[0, len(ids) - 2].argmax()) for logits in found] == wanted


def test_guesses_for_held_out_documents_are_mostly_right() -> None:
    model, shape, vocabulary, _ = load_model(find_model("demo"))
    params, own, _ = export.load(FOLDER)
    rates = acceptance(params, model, shape, own, held_out_batches(vocabulary, 2, 40), 3)
    assert rates.min() > FLOOR


FLOOR = 0.7


def test_a_saved_head_comes_back(tmp_path: Path) -> None:
    params, own, run = export.load(FOLDER)
    _, shape, _, _ = load_model(find_model("demo"))
    export.save(params, shape, own, tmp_path, run)
    assert (tmp_path / "config.json").read_bytes() == (FOLDER / "config.json").read_bytes()
    again, own_again, run_again = export.load(tmp_path)
    assert (own_again, run_again) == (own, run)
    assert sorted(again) == sorted(params)
    assert all(np.array_equal(again[name], params[name]) for name in params)


@pytest.mark.parametrize("number", [0, 2])
def test_counted_guesses_are_of_words_that_the_model_writes(number: int) -> None:
    documents = jnp.array([[0, 0, 0, 0, 0, 1, 1, -1]])
    weights = jnp.array([[0.0, 0.1, 1.0, 1.0, 1.0, 0.0, 1.0, 0.0]])
    places = np.flatnonzero(network.counted(documents, weights, number)[0])
    assert places.tolist() == {0: [0, 1, 2], 2: [0]}[number]
