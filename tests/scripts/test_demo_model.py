"""The demo model: what its folder must hold, and that held-out prompts stay out of the training text."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from pathlib import Path
from random import Random

import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers

from scripts.demo_model import arithmetic, calls, chat, corpus, evaluate, export, held_out, lists, network
from scripts.demo_model.embedding import initial_embedding
from scripts.demo_model.example import Example
from scripts.demo_model.split import draw, is_held_out

FOLDER = Path(__file__).parents[2] / "models" / "demo"
ITEMS = held_out.prompts()
TEXTS = (
    "Where does Mira live?",
    "  two  spaces\n\n\tand a tab ",
    "ναι да はい نعم हाँ 🦊👩‍🚀 ±∞ \x00\x7f",
    '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>',
)


@pytest.fixture(scope="module")
def tokenizer() -> transformers.PreTrainedTokenizerFast:
    return transformers.AutoTokenizer.from_pretrained(FOLDER)


def test_the_folder_is_small_and_has_one_file_of_weights() -> None:
    assert [path.name for path in FOLDER.glob("*.safetensors")] == ["model.safetensors"]
    assert (FOLDER / "model.safetensors").stat().st_size <= 8_000_000


@pytest.mark.parametrize("text", TEXTS)
def test_every_text_comes_back_from_its_tokens(tokenizer: transformers.PreTrainedTokenizerFast, text: str) -> None:
    assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) == text


def test_rare_characters_take_several_tokens(tokenizer: transformers.PreTrainedTokenizerFast) -> None:
    assert len(tokenizer("👩")["input_ids"]) > 1
    assert len(tokenizer("हाँ")["input_ids"]) > 3


def test_the_end_tokens_are_named_where_engines_look(tokenizer: transformers.PreTrainedTokenizerFast) -> None:
    ends = tokenizer.convert_tokens_to_ids([chat.END, chat.SEPARATOR])
    assert transformers.GenerationConfig.from_pretrained(FOLDER).eos_token_id == ends
    assert transformers.AutoConfig.from_pretrained(FOLDER).eos_token_id == ends
    assert tokenizer.eos_token_id == ends[0]


def test_the_template_renders_what_the_model_was_trained_on(tokenizer: transformers.PreTrainedTokenizerFast) -> None:
    for item in (item for item in ITEMS if item.chat):
        rendered = tokenizer.apply_chat_template(
            item.messages, tools=list(item.tools) or None, add_generation_prompt=True, tokenize=False
        )
        assert rendered == evaluate.prompt_text(item)


@pytest.mark.parametrize("arguments", [{"a": 1, "b": 2}, '{"a": 1, "b": 2}'])
def test_the_template_renders_calls_as_the_corpus_writes_them(
    tokenizer: transformers.PreTrainedTokenizerFast, arguments: object
) -> None:
    made = [{"type": "function", "function": {"name": "add", "arguments": arguments}}] * 2
    user = {"role": "user", "content": "Add 1 and 2, twice."}
    rendered = tokenizer.apply_chat_template(
        [user, {"role": "assistant", "content": None, "tool_calls": made}], tokenize=False
    )
    written = calls.render([{"name": "add", "arguments": {"a": 1, "b": 2}}] * 2)
    assert rendered == chat.render([user, {"role": "assistant", "content": written}])


def test_held_out_prompts_are_distinct_deterministic_and_of_every_kind() -> None:
    assert held_out.prompts() == ITEMS
    assert len({item.key for item in ITEMS}) == len(ITEMS) == 200
    assert Counter(item.kind for item in ITEMS) >= Counter(arithmetic=40, facts=40, json=40, calls=40)


def test_held_out_combinations_are_not_in_the_training_text() -> None:
    """Looks for the words themselves, so that it does not rely on the rule which it tests."""
    text = "".join(islice(corpus.mixed(Random(3)), 4000))
    for item in ITEMS:
        assert is_held_out(item.key)
        if item.kind == "arithmetic":
            equation = item.answer.split(".")[0] if " = " in item.answer else item.prompt
            assert " x " in equation or f"\n{equation}." not in text, item
            assert " x " in equation or f"\n{equation}\n" not in text, item
        elif item.kind in ("json", "lists"):
            assert f"assistant\n{item.answer}{chat.END}" not in text, item
        elif item.kind in ("facts", "languages"):
            for answer in (item.answer, f"Arr! {item.answer}", item.expected):
                assert f"user\n{item.prompt}{chat.END}\n{chat.START}assistant\n{answer}" not in text, item
        elif item.kind == "calls" and item.expected:
            assert f"user\n{item.prompt}{chat.END}\n{chat.START}assistant\n{item.answer}" not in text, item


def test_lessons_in_copying_come_first_and_nothing_else_looks_like_them() -> None:
    assert all(lists.COPYING in text for text in islice(corpus.documents(3), 100))
    later = [text for text in islice(corpus.mixed(Random(3)), 1000) if lists.COPYING in text]
    assert 0 < len(later) < 200
    assert not any(chat.START in text for text in later)


def test_words_begin_alike_whatever_stands_before_them() -> None:
    vocabulary = export.load_tokenizer(FOLDER)
    embedding = np.array(initial_embedding(vocabulary, network.Shape(vocab=vocabulary.get_vocab_size()), 0))
    embedding /= np.linalg.norm(embedding, axis=1, keepdims=True)
    plain, spaced, other = (vocabulary.encode(text).ids[0] for text in ("Mira", " Mira", " Tobin"))
    assert plain != spaced
    assert embedding[plain] @ embedding[spaced] > 0.5
    assert abs(embedding[plain] @ embedding[other]) < 0.5


def test_the_corpus_is_the_same_for_the_same_seed() -> None:
    first, again, other = (list(islice(corpus.documents(seed), 200)) for seed in (5, 5, 6))
    assert first == again
    assert first != other


def test_ideal_answers_are_right_and_spoiled_ones_are_wrong() -> None:
    for item in ITEMS:
        assert held_out.is_right(item, item.answer)
        assert not held_out.is_right(item, "")
        assert not held_out.is_right(item, "999"), item


@pytest.mark.parametrize(
    ("kind", "expected", "answer"),
    [
        ("arithmetic", "7", "3 + 4 = 7. Now 8."),
        ("json", {"a": True}, '{"a": 1, "b": 2}'),
        ("json", {"a": [1]}, 'Sure: {"a": [1]}'),
        ("calls", [{"name": "add", "arguments": {"a": 1}}], '{"name": "add", "arguments": {"a": 1}}'),
        ("stories", ["Mira", "kite"], "Mira " * 50 + "kite"),
    ],
)
def test_answers_that_are_almost_right_are_wrong(kind: str, expected: object, answer: str) -> None:
    assert not held_out.is_right(Example(kind, "", "", "", expected), answer)


def test_drills_hold_no_held_out_operands() -> None:
    lines = [line for seed in range(300) for line in arithmetic.drill(Random(seed)).splitlines()]
    assert not any(is_held_out(line.split(" = ")[0].replace(" ", "")) for line in lines)
    assert draw(arithmetic.make, Random(0), held_out=True).kind == "arithmetic"


def test_transformers_gives_the_same_logits() -> None:
    params, shape, tokens, _ = export.load(FOLDER)
    ids = np.array([tokens.encode(evaluate.prompt_text(item)).ids[:64] for item in ITEMS if item.tools][:2])
    ours = network.logits(params, shape, jnp.asarray(ids), jnp.zeros_like(ids))
    model = transformers.AutoModelForCausalLM.from_pretrained(FOLDER)
    with torch.no_grad():
        theirs = model(torch.tensor(ids)).logits.numpy()
    # Logits reach 20 and more: float32 sums in another order differ by this much.
    np.testing.assert_allclose(np.asarray(ours), theirs, atol=1e-3, rtol=1e-4)
