"""Embeddings and scores equal those of transformers, for every family."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from jaxllm.errors import ConfigError
from jaxllm.pooling.params import PoolingParams
from tests.jaxllm.pooling.checkpoints import VOCAB, hidden_states, logits, save, save_dense, save_modules, unit
from tests.jaxllm.pooling.driving import engine_of, pool, request, run

random = np.random.default_rng(1)
TEXTS = [random.integers(3, VOCAB, length).tolist() for length in (1, 33, 7, 20, 2)]
EMBEDDERS: list[Any] = [
    ("BertModel", "cls"),
    ("RobertaModel", "mean_tokens"),
    pytest.param("XLMRobertaModel", "cls_token", marks=pytest.mark.slow),
    pytest.param("DistilBertModel", "mean_tokens", marks=pytest.mark.slow),
    ("ModernBertModel", "mean_tokens"),
    ("MistralModel", "lasttoken"),
    pytest.param("Qwen2ForCausalLM", "mean_tokens", marks=pytest.mark.slow),
    ("Qwen3ForCausalLM", "lasttoken"),
    pytest.param("LlamaModel", "last", marks=pytest.mark.slow),
]
"""With what sentence-transformers says, or what goes without saying."""


def _pooled(hidden: np.ndarray, how: str) -> np.ndarray:
    return hidden.mean(axis=0) if how.startswith("mean") else hidden[0] if how.startswith("cls") else hidden[-1]


@pytest.mark.parametrize(("architecture", "how"), EMBEDDERS)
def test_embeddings(tmp_path: Path, architecture: str, how: str) -> None:
    model = save(tmp_path, architecture)
    if how not in ("cls", "last"):
        save_modules(tmp_path, how, normalize=True)
    with engine_of(tmp_path) as engine:
        found = pool(engine, TEXTS)
        tokens = pool(engine, TEXTS[:2], PoolingParams(task="token_embed", normalize=False))
    for text, vector in zip(TEXTS, found, strict=True):
        wanted = unit(_pooled(hidden_states(model, text), how))
        assert vector.dtype == np.float32
        assert float(vector @ wanted) > 0.99999
        np.testing.assert_allclose(vector, wanted, atol=2e-5, rtol=0)
    for text, states in zip(TEXTS[:2], tokens, strict=True):
        np.testing.assert_allclose(states, hidden_states(model, text), atol=1e-4, rtol=0)


def _softmax(scores: np.ndarray) -> np.ndarray:
    return torch.softmax(torch.tensor(scores), -1).numpy()


def _sigmoid(scores: np.ndarray) -> np.ndarray:
    return torch.sigmoid(torch.tensor(scores)).numpy()


CLASSIFIERS: list[Any] = [
    ("BertForSequenceClassification", {"num_labels": 3}, _softmax),
    ("RobertaForSequenceClassification", {"num_labels": 1}, _sigmoid),
    pytest.param(
        "ModernBertForSequenceClassification", {"classifier_pooling": "mean"}, _softmax, marks=pytest.mark.slow
    ),
    pytest.param(
        "XLMRobertaForSequenceClassification",
        {"num_labels": 2, "problem_type": "regression"},
        lambda scores: scores,
        marks=pytest.mark.slow,
    ),
    pytest.param("DistilBertForSequenceClassification", {}, _softmax, marks=pytest.mark.slow),
    (
        "LlamaForSequenceClassification",
        {"num_labels": 4, "problem_type": "multi_label_classification"},
        _sigmoid,
    ),
    pytest.param("Qwen3ForSequenceClassification", {"num_labels": 3}, _softmax, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("architecture", "options", "activation"), CLASSIFIERS, ids=lambda each: str(each)[:20])
def test_classes(tmp_path: Path, architecture: str, options: dict[str, Any], activation: Any) -> None:
    model = save(tmp_path, architecture, **options)
    with engine_of(tmp_path) as engine:
        found = pool(engine, TEXTS)
        plain = pool(engine, TEXTS, PoolingParams(use_activation=False))
    for text, scores, raw in zip(TEXTS, found, plain, strict=True):
        wanted = logits(model, text)
        np.testing.assert_allclose(raw, wanted, atol=1e-4, rtol=0)
        np.testing.assert_allclose(scores, activation(wanted), atol=2e-5, rtol=0)


def test_a_cross_encoder_is_told_the_texts_apart(tmp_path: Path) -> None:
    model = save(tmp_path, "BertForSequenceClassification", num_labels=1)
    text, second = TEXTS[1], 12
    types = torch.tensor([[int(place >= second) for place in range(len(text))]])
    with engine_of(tmp_path) as engine:
        together, alone = run(engine, [request("pair", text, second_text=second), request("one", text)])
    np.testing.assert_allclose(together, _sigmoid(logits(model, text, token_type_ids=types)), atol=2e-5, rtol=0)
    np.testing.assert_allclose(alone, _sigmoid(logits(model, text)), atol=2e-5, rtol=0)
    assert abs(float(together[0] - alone[0])) > 1e-3


@pytest.mark.parametrize("tied", [False, True])
def test_a_language_model_chooses_between_two_tokens(tmp_path: Path, tied: bool) -> None:
    model = save(tmp_path, "Qwen3ForCausalLM", tie_word_embeddings=tied)
    no, yes = 11, 40
    with engine_of(tmp_path, pooler_config={"classifier_from_token": [no, yes]}) as engine:
        found = pool(engine, TEXTS)
    for text, score in zip(TEXTS, found, strict=True):
        with torch.no_grad():
            last = model(torch.tensor([text])).logits[0, -1]
        wanted = torch.softmax(last[[no, yes]], -1)[1]
        np.testing.assert_allclose(score, [wanted], atol=2e-5, rtol=0)


def test_pages_may_have_any_size(tmp_path: Path) -> None:
    model = save(tmp_path, "Qwen3ForCausalLM")
    with engine_of(tmp_path, runner="pooling", block_size=32) as engine:
        assert engine.info.block_size == 32
        found = pool(engine, TEXTS)
    for text, vector in zip(TEXTS, found, strict=True):
        np.testing.assert_allclose(vector, unit(hidden_states(model, text)[-1]), atol=2e-5, rtol=0)


def test_dense_layers_behind_the_pooling(tmp_path: Path) -> None:
    """By the definition of the module: https://sbert.net, `sentence_transformers.models.Dense`."""
    model = save(tmp_path, "BertModel")
    layers = [torch.nn.Linear(32, 24), torch.nn.Linear(24, 40, bias=False)]
    save_modules(tmp_path, "mean_tokens", normalize=True)
    save_dense(tmp_path, layers, ["torch.nn.modules.activation.Tanh", "torch.nn.modules.linear.Identity"])
    with engine_of(tmp_path) as engine:
        assert engine.info.pooling is not None
        assert (engine.info.pooling.size, engine.info.pooling.tasks) == (40, ("embed",))
        found = pool(engine, TEXTS)
        plain = pool(engine, TEXTS[:1], PoolingParams(normalize=False))
    for text, vector in zip(TEXTS, found, strict=True):
        with torch.no_grad():
            pooled = torch.tensor(hidden_states(model, text).mean(axis=0))
            wanted = layers[1](torch.tanh(layers[0](pooled))).numpy()
        np.testing.assert_allclose(vector, unit(wanted), atol=2e-5, rtol=0)
        if text is TEXTS[0]:
            np.testing.assert_allclose(plain[0], wanted, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"activation_function": "torch.nn.modules.activation.Hardtanh"}, "'Hardtanh' is not supported"),
        ({"in_features": 31}, "2_Dense takes 31 numbers, and the model gives 32"),
        ({"out_features": 23}, r"linear.weight has shape \[24, 32\], expected \[23, 32\]"),
        ({"bias": True}, "linear.bias is not there"),
    ],
)
def test_dense_layers_that_do_not_fit(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    save(tmp_path, "BertModel")
    save_modules(tmp_path, "mean_tokens", normalize=False)
    save_dense(tmp_path, [torch.nn.Linear(32, 24, bias=False)], ["torch.nn.modules.activation.Tanh"], **change)
    with pytest.raises(ConfigError, match=message), engine_of(tmp_path):
        pass
