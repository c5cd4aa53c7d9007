"""Embeddings and scores equal those of transformers, for every family."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from jaxllm.config import EngineConfig
from jaxllm.errors import ConfigError
from jaxllm.load import load_engine
from jaxllm.pooling.params import PoolingParams
from tests.jaxllm.pooling.checkpoints import VOCAB, hidden_states, logits, save, save_dense, save_modules, unit
from tests.jaxllm.pooling.driving import engine_of, pool, request, run

random = np.random.default_rng(1)
TEXTS = [random.integers(3, VOCAB, length).tolist() for length in (1, 33, 7, 20, 2)]
EMBEDDERS: list[Any] = [
    ("BertModel", "cls"),
    ("AlbertModel", "mean_tokens"),
    pytest.param("ElectraModel", "cls", marks=pytest.mark.slow),
    pytest.param("DebertaV2Model", "mean_tokens", marks=pytest.mark.slow),
    ("RobertaModel", "mean_tokens"),
    pytest.param("XLMRobertaModel", "cls_token", marks=pytest.mark.slow),
    pytest.param("DistilBertModel", "mean_tokens", marks=pytest.mark.slow),
    ("ModernBertModel", "mean_tokens"),
    ("MistralModel", "lasttoken"),
    ("Gemma3TextModel", "mean_tokens"),
    ("NomicBertModel", "mean_tokens"),
    pytest.param("GteModel", "cls_token", marks=pytest.mark.slow),
    pytest.param("JinaEmbeddingsV3Model", "mean_tokens", marks=pytest.mark.slow),
    pytest.param("EuroBertModel", "mean_tokens", marks=pytest.mark.slow),
    pytest.param("Qwen2ForCausalLM", "mean_tokens", marks=pytest.mark.slow),
    ("Qwen3ForCausalLM", "lasttoken"),
    pytest.param("LlamaModel", "last", marks=pytest.mark.slow),
    pytest.param("BloomModel", "lasttoken", marks=pytest.mark.slow),
    pytest.param("GPT2Model", "mean_tokens", marks=pytest.mark.slow),
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


@pytest.mark.slow
def test_decoders_that_see_both_sides(tmp_path: Path) -> None:
    """As GTE-Qwen2: transformers follows `is_causal` of the configuration, too."""
    model = save(tmp_path, "Qwen2Model", is_causal=False)
    with engine_of(tmp_path) as engine:
        found = pool(engine, TEXTS)
    for text, vector in zip(TEXTS, found, strict=True):
        np.testing.assert_allclose(vector, unit(hidden_states(model, text)[-1]), atol=2e-5, rtol=0)
    first = unit(hidden_states(model, TEXTS[1])[0])
    assert abs(first @ unit(hidden_states(model, TEXTS[1][:9])[0])) < 0.999


@pytest.mark.parametrize(
    ("options", "message"), [({}, "is not a generative model"), ({"sliding_window": 1}, "a window greater than 1")]
)
def test_what_sees_both_sides_does_not_generate(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    save(tmp_path, "Gemma3TextModel", **options)
    path = tmp_path / "config.json"
    values = {**json.loads(path.read_text()), **options, "architectures": ["Gemma3ForCausalLM"]}
    path.write_text(json.dumps(values))
    with pytest.raises(ConfigError, match=message), engine_of(tmp_path, runner="generate"):
        pass


@pytest.mark.slow
def test_the_first_releases_of_nomic_and_gte(tmp_path: Path) -> None:
    """Their configurations, as on the hub, for what transformers computes; `ntk` is its default rotation with a base
    and a factor on positions, by Alibaba's own code (https://huggingface.co/Alibaba-NLP/new-impl).
    """
    nomic, gte = tmp_path / "nomic", tmp_path / "gte"
    gpt = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_inner": 48, "n_positions": 128, "max_trained_positions": 66}
    same = {"vocab_size": VOCAB, "type_vocab_size": 2, "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0}
    values = {**gpt, **same, "activation_function": "swiglu", "layer_norm_epsilon": 1e-12, "prenorm": False}
    model = save(nomic, "NomicBertModel")
    (nomic / "config.json").write_text(json.dumps({"architectures": ["NomicBertModel"], **values}))
    scaled = {"rope_type": "linear", "factor": 2.0 ** (2 / 8), "rope_theta": 20_000.0}
    other = save(gte, "GteModel", rope_parameters=scaled)
    values = json.loads((gte / "config.json").read_text())
    del values["rope_parameters"]
    scaling = {"rope_theta": 10_000.0, "rope_scaling": {"type": "ntk", "factor": 2.0}, "pack_qkv": True}
    (gte / "config.json").write_text(json.dumps({**values, **scaling, "architectures": ["NewModel"]}))
    for folder, expected in ((nomic, model), (gte, other)):
        with engine_of(folder) as engine:
            assert engine.info.max_model_len == 66
            found = pool(engine, TEXTS)
        for text, vector in zip(TEXTS, found, strict=True):
            np.testing.assert_allclose(vector, unit(hidden_states(expected, text)[0]), atol=2e-5, rtol=0)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"prenorm": True}, "option 'prenorm' = true is not supported"),
        ({"moe_every_n_layers": 2}, "'hidden_act' must be gelu for a model with experts"),
        ({"moe_every_n_layers": 2, "hidden_act": "gelu", "moe_top_k": 9}, "'moe_top_k' must be at most"),
        ({"moe_every_n_layers": 2, "hidden_act": "gelu", "expert_choice_router": True}, "'expert_choice_router'"),
        ({"hidden_act": "relu"}, "'hidden_act' must be gelu, silu or swiglu"),
        ({"mlp_fc1_bias": True}, "'mlp_fc2_bias' must be true"),
    ],
)
def test_options_that_nomic_bert_does_not_have(tmp_path: Path, values: dict[str, Any], message: str) -> None:
    save(tmp_path, "NomicBertModel")
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
    with pytest.raises(ConfigError, match=message), engine_of(tmp_path):
        pass


def _softmax(scores: np.ndarray) -> np.ndarray:
    return torch.softmax(torch.tensor(scores), -1).numpy()


def _sigmoid(scores: np.ndarray) -> np.ndarray:
    return torch.sigmoid(torch.tensor(scores)).numpy()


CLASSIFIERS: list[Any] = [
    ("BertForSequenceClassification", {"num_labels": 3}, _softmax),
    ("DebertaV2ForSequenceClassification", {"num_labels": 3}, _softmax),
    pytest.param(
        "DebertaV2ForSequenceClassification",
        {
            "position_buckets": -1,
            "max_relative_positions": 12,
            "share_att_key": False,
            "norm_rel_ebd": "none",
            "type_vocab_size": 2,
            "position_biased_input": True,
        },
        _softmax,
        marks=pytest.mark.slow,
    ),
    pytest.param(
        "DebertaV2ForSequenceClassification",
        {"pos_att_type": ["c2p"], "share_att_key": False, "num_labels": 1},
        _sigmoid,
        marks=pytest.mark.slow,
    ),
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
    pytest.param("AlbertForSequenceClassification", {"num_labels": 3}, _softmax, marks=pytest.mark.slow),
    ("ElectraForSequenceClassification", {"num_labels": 3}, _softmax),
    (
        "LlamaForSequenceClassification",
        {"num_labels": 4, "problem_type": "multi_label_classification"},
        _sigmoid,
    ),
    pytest.param("Qwen3ForSequenceClassification", {"num_labels": 3}, _softmax, marks=pytest.mark.slow),
    pytest.param("NomicBertForSequenceClassification", {"num_labels": 3}, _softmax, marks=pytest.mark.slow),
    pytest.param(
        "GteForSequenceClassification", {"num_labels": 1, "type_vocab_size": 2}, _sigmoid, marks=pytest.mark.slow
    ),
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
    """As an option, and as vLLM's users ask for it."""
    model = save(tmp_path, "Qwen3ForCausalLM", tie_word_embeddings=tied)
    no, yes = 11, 40
    answers = {"classifier_from_token": [no, yes]}
    original = {"architectures": ["Qwen3ForSequenceClassification"], "is_original_qwen3_reranker": True}
    options = {"hf_overrides": {**original, **answers}} if tied else {"pooler_config": answers}
    with engine_of(tmp_path, **options) as engine:
        found = pool(engine, TEXTS)
    for text, score in zip(TEXTS, found, strict=True):
        with torch.no_grad():
            last = model(torch.tensor([text])).logits[0, -1]
        wanted = torch.softmax(last[[no, yes]], -1)[1]
        np.testing.assert_allclose(score, [wanted], atol=2e-5, rtol=0)


@pytest.mark.slow
def test_the_logit_of_one_token(tmp_path: Path) -> None:
    """As vLLM makes a reranker of bge-reranker-v2-gemma."""
    model = save(tmp_path, "Qwen3ForCausalLM")
    overrides = {"classifier_from_token": [40], "method": "no_post_processing"}
    with engine_of(tmp_path, hf_overrides=overrides) as engine:
        found = pool(engine, TEXTS)
    for text, score in zip(TEXTS, found, strict=True):
        with torch.no_grad():
            wanted = torch.sigmoid(model(torch.tensor([text])).logits[0, -1, 40:41])
        np.testing.assert_allclose(score, wanted, atol=2e-5, rtol=0)
    with pytest.raises(ConfigError, match="only 'no_post_processing'"):
        load_engine(EngineConfig.from_options({"model": str(tmp_path), "hf_overrides": {**overrides, "method": "x"}}))


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
        ({"in_features": 31}, "2_Dense expects 31 inputs, but the model has 32"),
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
