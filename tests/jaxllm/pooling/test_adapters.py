"""Pooling models with LoRA adapters: results are those of PEFT on transformers, whatever else is in the batch."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from jaxllm.adapters.adapters import Ready
from jaxllm.adapters.store import HostAdapter
from jaxllm.config import EngineConfig
from jaxllm.errors import ConfigError, RequestError
from jaxllm.pooling.engine import PoolingEngine
from jaxllm.pooling.params import PoolingParams
from jaxllm.pooling.request import PoolingRequest
from jaxllm.pooling.resolved import resolve_pooling_config
from jaxllm.pooling.waiting import check_labels
from jaxllm.requests.lora_request import LoRARequest
from tests.adapter_folders import write_adapter
from tests.jaxllm.pooling.checkpoints import VOCAB, logits, save
from tests.jaxllm.pooling.driving import engine_of, request, run
from tests.models.adapters import trained

random = np.random.default_rng(11)
TEXTS = [random.integers(3, VOCAB, length).tolist() for length in (1, 33, 7, 20, 2)]
LORA: dict[str, Any] = {"enable_lora": True, "max_loras": 2, "max_lora_rank": 8, "lora_dtype": "float32"}
RAW = PoolingParams(use_activation=False)

CLASSIFIERS: list[Any] = [
    ("BertForSequenceClassification", ["query", "value", "dense"]),
    pytest.param("RobertaForSequenceClassification", ["key", "intermediate.dense"], marks=pytest.mark.exhaustive),
    ("Qwen3ForSequenceClassification", ["q_proj", "o_proj", "down_proj"]),
    pytest.param("DistilBertForSequenceClassification", ["q_lin", "lin2"], marks=pytest.mark.exhaustive),
    pytest.param("AlbertForSequenceClassification", ["query", "ffn"], marks=pytest.mark.exhaustive),
    pytest.param("ElectraForSequenceClassification", ["query", "dense"], marks=pytest.mark.exhaustive),
    pytest.param("DebertaV2ForSequenceClassification", ["value_proj", "dense"], marks=pytest.mark.exhaustive),
    pytest.param("ModernBertForSequenceClassification", ["Wqkv", "Wo", "Wi"], marks=pytest.mark.exhaustive),
    pytest.param("GPT2ForSequenceClassification", ["c_attn"]),
]
EMBEDDERS: list[Any] = [
    ("ModernBertModel", ["Wqkv", "Wi"]),
    ("Qwen3ForCausalLM", ["k_proj", "up_proj"]),
    pytest.param("BertModel", ["query", "dense"], marks=pytest.mark.exhaustive),
    pytest.param("ElectraModel", ["embeddings_project", "value"], marks=pytest.mark.exhaustive),
    pytest.param("EuroBertModel", ["q_proj", "down_proj"], marks=pytest.mark.exhaustive),
    pytest.param("Gemma3TextModel", ["v_proj"], marks=pytest.mark.exhaustive),
]


def asking(
    request_id: str, text: list[int], folder: Path | None, params: PoolingParams | None = None, name: str | None = None
) -> PoolingRequest:
    made = request(request_id, text, params)
    if folder is not None:
        made.lora_request = LoRARequest(name or folder.name, 1, str(folder))
    return made


def adapters(
    model: torch.nn.Module, root: Path, modules: list[str], task: str, count: int = 3
) -> tuple[list[Path], list[torch.nn.Module]]:
    """Folders of adapters of a model, and the model with each of them."""
    folders, models = [], []
    for index in range(count):
        wrapped = trained.train(
            copy.deepcopy(model), task_type=task, target_modules=modules, r=(4, 2, 8)[index], spread=0.1 + 0.1 * index
        )
        folders.append(trained.save(wrapped, root / f"adapter-{index}"))
        models.append(wrapped)
    return folders, models


def check_mixed(
    engine: PoolingEngine,
    folders: list[Path],
    models: list[torch.nn.Module],
    wanted: Callable[[torch.nn.Module, list[int]], np.ndarray],
    params: PoolingParams,
) -> None:
    """Requests of several adapters and of none give what each model says, in any order and alone."""
    each = [(text, which) for text in TEXTS for which in range(len(models))]
    made = [
        asking(str(index), text, folders[which] if which < len(folders) else None, params)
        for index, (text, which) in enumerate(each)
    ]
    results = run(engine, made)
    for (text, which), found in zip(each, results, strict=True):
        np.testing.assert_allclose(found, wanted(models[which], text), atol=1e-4, rtol=0)
    for index in (1, 5, 10):
        text, which = each[index]
        (alone,) = run(engine, [asking("alone", text, folders[which] if which < len(folders) else None, params)])
        np.testing.assert_allclose(alone, results[index], atol=1e-5, rtol=0)
    assert np.abs(results[4] - results[5]).max() > 0.01
    assert engine.stats().num_compilations == 0


@pytest.mark.parametrize(("architecture", "modules"), CLASSIFIERS)
def test_scores(tmp_path: Path, architecture: str, modules: list[str]) -> None:
    model = save(tmp_path, architecture, num_labels=3, **({"pad_token_id": 0} if "GPT2" in architecture else {}))
    folders, models = adapters(model, tmp_path, modules, "SEQ_CLS")
    with engine_of(tmp_path, **LORA) as engine:
        check_mixed(engine, folders, [*models, model], logits, RAW)


def embedding(model: torch.nn.Module, text: list[int]) -> np.ndarray:
    with torch.no_grad():
        states = model(torch.tensor([text]), output_hidden_states=True)
    hidden = states.hidden_states[-1] if hasattr(states, "logits") else states.last_hidden_state
    vector: np.ndarray = hidden[0, -1 if hasattr(model.config, "num_key_value_heads") else 0].numpy()
    return vector / np.linalg.norm(vector)


@pytest.mark.parametrize(("architecture", "modules"), EMBEDDERS)
def test_embeddings(tmp_path: Path, architecture: str, modules: list[str]) -> None:
    model = save(tmp_path, architecture)
    folders, models = adapters(model, tmp_path, modules, "FEATURE_EXTRACTION")
    with engine_of(tmp_path, runner="pooling", **LORA) as engine:
        check_mixed(engine, folders, [*models, model], embedding, PoolingParams())


@pytest.mark.parametrize(
    ("architecture", "target", "other"),
    [
        ("BertForSequenceClassification", "query", "value"),
        pytest.param("Qwen3ForSequenceClassification", "o_proj", "down_proj", marks=pytest.mark.exhaustive),
    ],
)
def test_target_modules(tmp_path: Path, architecture: str, target: str, other: str) -> None:
    model = save(tmp_path, architecture, num_labels=3)
    folders, models = adapters(model, tmp_path, [target], "SEQ_CLS", 2)
    (outside, *_), _ = adapters(model, tmp_path / "other", [target, other], "SEQ_CLS", 1)
    with engine_of(tmp_path, **LORA, lora_target_modules=(target,)) as engine:
        check_mixed(engine, folders, [*models, model], logits, RAW)
        (refused,) = ended(engine, asking("0", TEXTS[0], outside)).values()
        assert "--lora-target-modules" in str(refused.refusal)
        assert other in str(refused.refusal)
    options = {"model": str(tmp_path), "enable_lora": True}
    config = EngineConfig.from_options({**options, "lora_target_modules": (target,)})
    shape = resolve_pooling_config(config).common.adapters
    assert shape is not None
    assert shape.modules is not None
    assert len(shape.modules) == 1
    config = EngineConfig.from_options({**options, "lora_target_modules": ("x_proj",)})
    with pytest.raises(ConfigError, match="lora_target_modules: the model has no linear layer 'x_proj'; its layers"):
        resolve_pooling_config(config)


def test_zeros_are_the_base_bit_by_bit(tmp_path: Path) -> None:
    zeros, options = write_adapter(tmp_path / "zeros", scale=0.0), {"runner": "pooling", "max_model_len": 64}
    with engine_of("demo", **options) as engine:
        wanted = run(engine, [asking(str(index), text, None) for index, text in enumerate(TEXTS)])
    with engine_of("demo", **options, **LORA) as engine:
        for folder in (zeros, None):
            found = run(engine, [asking(str(index), text, folder) for index, text in enumerate(TEXTS)])
            assert all((one == other).all() for one, other in zip(found, wanted, strict=True))


@pytest.mark.parametrize(
    "options",
    [{"use_dora": True}, pytest.param({"bias": "lora_only"}, marks=pytest.mark.exhaustive), {"lora_bias": True}],
)
def test_magnitudes_and_biases(tmp_path: Path, options: dict[str, Any]) -> None:
    model = save(tmp_path, "BertForSequenceClassification", num_labels=2)
    modules = ["query", "intermediate.dense"]
    wrapped = trained.train(copy.deepcopy(model), task_type="SEQ_CLS", target_modules=modules, **options)
    folder = trained.save(wrapped, tmp_path / "adapter")
    with engine_of(tmp_path, **LORA, lora_vectors=True) as engine:
        requests = [asking(str(index), text, (folder, None)[index % 2], RAW) for index, text in enumerate(TEXTS)]
        for index, found in enumerate(run(engine, requests)):
            wanted = logits((wrapped, model)[index % 2], TEXTS[index])
            np.testing.assert_allclose(found, wanted, atol=1e-4, rtol=0)
    with engine_of(tmp_path, **LORA) as engine:
        (refused,) = ended(engine, asking("0", TEXTS[0], folder)).values()
        assert "--lora-vectors" in str(refused.refusal)


def test_heads_of_tokens(tmp_path: Path) -> None:
    model = save(tmp_path, "Qwen3ForSequenceClassification", num_labels=2)
    (folder, *_), (wrapped, *_) = adapters(model, tmp_path, ["q_proj"], "SEQ_CLS", 1)
    inner: Any = wrapped.base_model.model
    with torch.no_grad():
        expected = inner.score(inner.model(torch.tensor([TEXTS[1]])).last_hidden_state)[0].numpy()
    with engine_of(tmp_path, **LORA) as engine:
        params = PoolingParams(task="token_classify", use_activation=False)
        (found,) = run(engine, [asking("0", TEXTS[1], folder, params)])
    np.testing.assert_allclose(found, expected, atol=1e-4, rtol=0)


def ended(engine: PoolingEngine, *requests: PoolingRequest) -> dict[str, Any]:
    for each in requests:
        engine.add_request(each)
    found: dict[str, Any] = {}
    while engine.has_unfinished_requests():
        found |= {output.request_id: output for output in engine.step()}
    return found


def test_other_numbers_of_labels(tmp_path: Path) -> None:
    """In one batch with the model's own; one label has the sigmoid, several the softmax of these alone."""
    counts = (3, 1, 2, 7)
    folders: list[Path | None] = [None]
    models: list[Any] = []
    for labels in counts:
        model: Any = save(tmp_path / str(labels), "BertForSequenceClassification", num_labels=labels)
        if models:
            model.bert.load_state_dict(models[0].bert.state_dict())
        (folder,), (wrapped,) = adapters(model, tmp_path, ["query"], "SEQ_CLS", 1)
        folders += [] if labels == counts[0] else [folder.rename(tmp_path / f"of {labels}")]
        models.append(model if labels == counts[0] else wrapped)
    with engine_of(tmp_path / "3", **LORA | {"max_loras": 3}, max_lora_cls_labels=7) as engine:
        for params in (RAW, PoolingParams()):
            made = [asking(str(index), TEXTS[index % 5], folders[index % 4], params) for index in range(12)]
            for index, scores in enumerate(run(engine, made)):
                wanted = torch.from_numpy(logits(models[index % 4], TEXTS[index % 5]))
                if params is not RAW:
                    wanted = wanted.sigmoid() if len(wanted) == 1 else wanted.softmax(-1)
                np.testing.assert_allclose(scores, wanted, atol=1e-4, rtol=0)
        each = PoolingParams(task="token_classify", use_activation=False, returned_token_ids=[6, 0])
        (scores,) = run(engine, [asking("0", TEXTS[1], folders[3], each)])
        assert scores.shape == (len(TEXTS[1]), 2)
        few = ended(engine, asking("0", TEXTS[1], folders[2], each))["0"]
        assert "6 is out of range: the adapter has 2 classes" in str(few.refusal)
        assert few.refused_parameter == "returned_token_ids"
        with pytest.raises(RequestError, match="6 is out of range: the model has 3 classes"):
            engine.add_request(asking("0", TEXTS[1], None, each))
        assert engine.stats().num_compilations == 0


@pytest.mark.parametrize(("labels", "is_right"), [(None, True), (1, True), (2, False)])
def test_a_score_needs_one_label(labels: int | None, is_right: bool) -> None:
    asked = request("0", TEXTS[0], PoolingParams(task="score"))
    ready = check_labels(Ready(asked, 0, HostAdapter(b"", (), labels)))
    assert asked.num_labels == labels
    assert ready.error is None if is_right else "scoring requires one label" in str(ready.error)


def test_an_adapter_that_cannot_be_served_ends_its_text_alone(tmp_path: Path) -> None:
    model = save(tmp_path, "BertForSequenceClassification", num_labels=2)
    (good, *_), _ = adapters(model, tmp_path / "good", ["query"], "SEQ_CLS", 1)
    other = save(tmp_path / "other", "BertForSequenceClassification", num_labels=5)
    (wide, *_), _ = adapters(other, tmp_path / "wide", ["query"], "SEQ_CLS", 1)
    pooled = trained.train(
        copy.deepcopy(model), task_type="SEQ_CLS", target_modules=["query"], modules_to_save=["LayerNorm"]
    )
    norms = trained.save(pooled, tmp_path / "norms")
    with engine_of(tmp_path, **LORA) as engine:
        (expected,) = run(engine, [asking("0", TEXTS[1], good)])
        found = ended(
            engine,
            asking("wide", TEXTS[0], wide),
            asking("good", TEXTS[1], good),
            asking("none", TEXTS[2], tmp_path / "nothing"),
            asking("norms", TEXTS[2], norms),
        )
        np.testing.assert_allclose(found["good"].data, expected, atol=1e-6, rtol=0)
        assert "'classifier.weight' has 5 labels, and slots have room for 2 (--max-lora-cls-labels)" in str(
            found["wide"].refusal
        )
        assert "adapter_config.json is not there" in str(found["none"].refusal)
        assert "is trained as a whole, which is not supported" in str(found["norms"].refusal)
        assert found["none"].refused_parameter == "lora_request"
        assert not engine.unfinished_ids()
    with engine_of(tmp_path) as engine, pytest.raises(RequestError, match="this engine takes no adapters"):
        engine.add_request(asking("0", TEXTS[0], good))


def test_aborts_and_loading(tmp_path: Path) -> None:
    model = save(tmp_path, "BertForSequenceClassification", num_labels=2)
    folders, _ = adapters(model, tmp_path, ["query"], "SEQ_CLS")
    with engine_of(tmp_path, **LORA) as engine:
        expected = [run(engine, [asking("0", TEXTS[1], folder)])[0] for folder in folders]
        # Two slots for three adapters: the last one waits, and gives up.
        for index, folder in enumerate(folders):
            engine.add_request(asking(str(index), TEXTS[1], folder))
        engine.abort_request("2")
        assert engine.unfinished_ids() == {"0", "1"}
        found = ended(engine)
        assert found["2"].finish_reason == "abort"
        np.testing.assert_allclose(found["0"].data, expected[0], atol=1e-6, rtol=0)
        np.testing.assert_allclose(found["1"].data, expected[1], atol=1e-6, rtol=0)
        assert (run(engine, [asking("2", TEXTS[1], folders[2])])[0] == expected[2]).all()
        config = folders[1] / "adapter_config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | {"alora_invocation_tokens": [5]}))
        engine.add_request(asking("3", TEXTS[1], folders[1], name="activated"))
        assert "'alora_invocation_tokens' is set, which pooling models do not" in str(ended(engine)["3"].refusal)
        again = False
        while not engine.control.add_lora("named", str(folders[0]), again=again):
            again = True
        assert engine.control.pin_lora("named")
        assert engine.control.remove_lora("named")
        assert not engine.control.remove_lora("named")
