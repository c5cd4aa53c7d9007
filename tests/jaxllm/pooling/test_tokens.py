"""Results of single tokens: classes, rewards, vectors for late interaction, and lexical weights."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from jaxllm.errors import ConfigError, RequestError
from jaxllm.pooling.params import PoolingParams
from tests.jaxllm.pooling.checkpoints import VOCAB, hidden_states, logits, save, save_modules, unit
from tests.jaxllm.pooling.driving import engine_of, pool, request, run
from tests.models.test_families import internlm2

random = np.random.default_rng(5)
TEXTS = [random.integers(3, VOCAB, length).tolist() for length in (1, 33, 7, 20, 2)]


def _change(folder: Path, **values: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def _with_tensors(folder: Path, **modules: torch.nn.Module) -> None:
    """Add the tensors of modules to the checkpoint."""
    added = {f"{name}.{key}": value for name, each in modules.items() for key, value in each.state_dict().items()}
    path = folder / "model.safetensors"
    save_file({**load_file(path), **added}, path)


CLASSIFIERS: list[Any] = [
    "BertForTokenClassification",
    pytest.param("AlbertForTokenClassification", marks=pytest.mark.slow),
    pytest.param("ElectraForTokenClassification", marks=pytest.mark.slow),
    pytest.param("Qwen3ForTokenClassification", marks=pytest.mark.slow),
    pytest.param("RobertaForTokenClassification", marks=pytest.mark.slow),
    pytest.param("DistilBertForTokenClassification", marks=pytest.mark.slow),
    pytest.param("ModernBertForTokenClassification", marks=pytest.mark.slow),
    pytest.param("GPT2ForTokenClassification", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("architecture", CLASSIFIERS)
def test_classes_of_tokens(tmp_path: Path, architecture: str) -> None:
    model = save(tmp_path, architecture, num_labels=3)
    with engine_of(tmp_path) as engine:
        assert engine.info.pooling is not None
        assert (engine.info.pooling.tasks, engine.info.pooling.size) == (("token_classify",), 3)
        found = pool(engine, TEXTS)
        second = pool(engine, TEXTS[3:], PoolingParams(use_activation=False, returned_token_ids=[2, 0]))
        with pytest.raises(RequestError, match="the model has 3 classes"):
            engine.add_request(request("x", TEXTS[0], PoolingParams(returned_token_ids=[3])))
    for text, scores in zip(TEXTS, found, strict=True):
        wanted = torch.softmax(torch.tensor(logits(model, text)), -1).numpy()
        np.testing.assert_allclose(scores, wanted, atol=2e-5, rtol=0)
    for text, scores in zip(TEXTS[3:], second, strict=True):
        np.testing.assert_allclose(scores, logits(model, text)[:, [2, 0]], atol=1e-4, rtol=0)


def _reward_head(labels: int) -> torch.nn.Sequential:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, labels))


@pytest.mark.slow
def test_rewards_of_steps(tmp_path: Path) -> None:
    """The head as in Qwen 2.5 Math's own code: https://huggingface.co/Qwen/Qwen2.5-Math-PRM-7B."""
    model, head = save(tmp_path, "Qwen2ForCausalLM"), _reward_head(2)
    _with_tensors(tmp_path, score=head)
    _change(tmp_path, architectures=["Qwen2ForProcessRewardModel"])
    step = TEXTS[1][4]
    text = [*TEXTS[1], step]
    with engine_of(tmp_path, pooler_config={"step_tag_id": step}) as engine:
        steps, others, none, *_ = run(
            engine,
            [
                request("steps", text),
                request("others", text, PoolingParams(step_tag_id=text[0])),
                request("none", TEXTS[0], PoolingParams(step_tag_id=VOCAB - 1)),
                *(request(str(index), each) for index, each in enumerate(TEXTS)),
            ],
        )
    with torch.no_grad():
        wanted = torch.softmax(head(torch.tensor(hidden_states(model, text))), -1).numpy()
    places = np.array(text)
    assert len(steps) >= 2
    np.testing.assert_allclose(steps, wanted[places == step], atol=2e-5, rtol=0)
    np.testing.assert_allclose(others, wanted[places == text[0]], atol=2e-5, rtol=0)
    assert none.shape == (0, 2)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["Qwen2ForRewardModel", "InternLM2ForRewardModel"])
def test_rewards_of_tokens(tmp_path: Path, architecture: str) -> None:
    head: torch.nn.Module
    if architecture.startswith("Qwen2"):
        model, head = save(tmp_path, "Qwen2ForCausalLM", tie_word_embeddings=True), _reward_head(1)
        _with_tensors(tmp_path, score=head)
    else:
        model = save(tmp_path, "LlamaForCausalLM", hidden_size=64, head_dim=16)
        head = torch.nn.Linear(64, 1, bias=False)
        path = tmp_path / "model.safetensors"
        tensors = internlm2({name: value.numpy() for name, value in load_file(path).items()})
        save_file({name: torch.tensor(value) for name, value in tensors.items()}, path)
        _with_tensors(tmp_path, v_head=head)
    _change(tmp_path, architectures=[architecture])
    with engine_of(tmp_path) as engine:
        found = pool(engine, TEXTS)
    for text, rewards in zip(TEXTS, found, strict=True):
        with torch.no_grad():
            wanted = head(torch.tensor(hidden_states(model, text))).numpy()
        np.testing.assert_allclose(rewards, wanted, atol=1e-4, rtol=0)


def test_vectors_for_late_interaction(tmp_path: Path) -> None:
    """As in ColBERT's own code: https://github.com/stanford-futuredata/ColBERT, `HF_ColBERT`."""
    model = save(tmp_path, "BertModel")
    layer = torch.nn.Linear(32, 12, bias=False)
    _with_tensors(tmp_path, linear=layer)
    _change(tmp_path, architectures=["HF_ColBERT"], dim=12)
    with engine_of(tmp_path) as engine:
        assert engine.info.pooling is not None
        assert (engine.info.pooling.tasks, engine.info.pooling.size) == (("token_embed",), 12)
        found = pool(engine, TEXTS)
        plain = pool(engine, TEXTS[1:2], PoolingParams(normalize=False))
    for text, vectors in zip(TEXTS, found, strict=True):
        with torch.no_grad():
            wanted = layer(torch.tensor(hidden_states(model, text))).numpy()
        np.testing.assert_allclose(vectors, unit(wanted), atol=2e-5, rtol=0)
        if text is TEXTS[1]:
            np.testing.assert_allclose(plain[0], wanted, atol=1e-4, rtol=0)
    _change(tmp_path, dim=13)
    with pytest.raises(ConfigError, match=r"'dim' must be 12"), engine_of(tmp_path):
        pass


@pytest.mark.slow
def test_a_folder_of_pylate(tmp_path: Path) -> None:
    """Checkpoints of https://github.com/lightonai/pylate, such as GTE-ModernColBERT: no pooling, dense layers."""
    model = save(tmp_path, "ModernBertModel")
    layers = [torch.nn.Linear(32, 24, bias=False), torch.nn.Linear(24, 8, bias=False)]
    modules = [{"path": "", "type": "sentence_transformers.models.Transformer"}]
    for index, layer in enumerate(layers, start=1):
        folder = tmp_path / f"{index}_Dense"
        folder.mkdir()
        sizes = {"in_features": layer.in_features, "out_features": layer.out_features, "bias": False}
        identity = {"activation_function": "torch.nn.modules.linear.Identity", "use_residual": False}
        (folder / "config.json").write_text(json.dumps({**sizes, **identity}))
        save_file({"linear.weight": layer.weight.detach()}, folder / "model.safetensors")
        modules.append({"path": folder.name, "type": "pylate.models.Dense.Dense"})
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with engine_of(tmp_path) as engine:
        found = pool(engine, TEXTS)
    for text, vectors in zip(TEXTS, found, strict=True):
        with torch.no_grad():
            wanted = layers[1](layers[0](torch.tensor(hidden_states(model, text)))).numpy()
        np.testing.assert_allclose(vectors, unit(wanted), atol=2e-5, rtol=0)


def test_weights_and_vectors_of_bge_m3(tmp_path: Path) -> None:
    """As FlagEmbedding does: https://github.com/FlagOpen/FlagEmbedding, `EncoderOnlyEmbedderM3ModelForInference`."""
    model = save(tmp_path, "XLMRobertaModel", bos_token_id=0, eos_token_id=2)
    vectors, weight = torch.nn.Linear(32, 32), torch.nn.Linear(32, 1)
    torch.save(vectors.state_dict(), tmp_path / "colbert_linear.pt")
    torch.save(weight.state_dict(), tmp_path / "sparse_linear.pt")
    save_modules(tmp_path, "cls_token", normalize=True)
    _change(tmp_path, architectures=["BgeM3EmbeddingModel"])
    texts = [[0, *text, 2] for text in TEXTS]
    with engine_of(tmp_path) as engine:
        assert engine.info.pooling is not None
        assert engine.info.pooling.tasks == ("embed", "token_embed", "token_classify")
        asked = [
            request(f"{task}{index}", text, PoolingParams(task=task))
            for task in engine.info.pooling.tasks
            for index, text in enumerate(texts)
        ]
        found = run(engine, asked)
        bare = pool(engine, TEXTS[1:2], PoolingParams(task="token_classify"))
    for index, text in enumerate(texts):
        states = torch.tensor(hidden_states(model, text))
        with torch.no_grad():
            wanted = states[0].numpy(), vectors(states)[1:].numpy(), torch.relu(weight(states))[1:-1].numpy()
        dense, many, sparse = (found[index + place * len(texts)] for place in range(3))
        np.testing.assert_allclose(dense, unit(wanted[0]), atol=2e-5, rtol=0)
        np.testing.assert_allclose(many, unit(wanted[1]), atol=2e-5, rtol=0)
        np.testing.assert_allclose(sparse, wanted[2], atol=1e-4, rtol=0)
    assert bare[0].shape == (len(TEXTS[1]), 1)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"id2label": {}}, r"config.json: 'id2label' must be an object with the name of at least one class"),
        ({"id2label": {"0": "a", "1": "b", "2": "c"}}, r"classifier.bias' has shape \[2\], expected \[3\]"),
        ({"id2label": None, "num_labels": 0}, "'num_labels' must be at least 1"),
        ({"id2label": None, "num_labels": 10**9}, "'num_labels' must be at most"),
    ],
)
def test_wrong_heads(tmp_path: Path, values: dict[str, Any], message: str) -> None:
    save(tmp_path, "BertForTokenClassification")
    _change(tmp_path, **values)
    with pytest.raises(ConfigError, match=message), engine_of(tmp_path):
        pass
