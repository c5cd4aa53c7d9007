"""`LLM` with pooling models: embeddings, classes and scores offline."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from jaxllm import LLM, LLMEngine, PoolingParams
from jaxllm.config import EngineConfig
from jaxllm.errors import ConfigError, RequestError
from tests.jaxllm.pooling.checkpoints import save, save_modules
from tests.jaxllm.pooling.driving import QUICK
from tests.serving.pooling.conftest import save_tokenizer

OPTIONS: dict[str, Any] = {**QUICK, "show_progress": False}
QUERY, DOCUMENTS = "what color is the sky", ["the sky is blue", "apples are red", "the cat sat on the mat"]


@pytest.fixture(scope="module")
def crossing(cross_encoder: Path) -> Iterator[LLM]:
    with LLM(str(cross_encoder), **OPTIONS) as llm:
        yield llm


@pytest.fixture(scope="module")
def embedding() -> Iterator[LLM]:
    with LLM("demo", runner="pooling", max_model_len=64, **OPTIONS) as llm:
        yield llm


def test_a_cross_encoder_scores_as_transformers_does(crossing: LLM, cross_encoder: Path) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model, tokenizer = (
        kind.from_pretrained(cross_encoder) for kind in (AutoModelForSequenceClassification, AutoTokenizer)
    )
    with torch.no_grad():
        inputs = tokenizer([QUERY] * 3, DOCUMENTS, return_tensors="pt", padding=True)
        wanted = torch.sigmoid(model(**inputs).logits[:, 0]).numpy()
    found = crossing.score(QUERY, DOCUMENTS, use_tqdm=False)
    np.testing.assert_allclose([each.outputs.score for each in found], wanted, atol=1e-5, rtol=0)
    assert found[0].prompt_token_ids == tokenizer(QUERY, DOCUMENTS[0])["input_ids"]
    raw = crossing.score(QUERY, DOCUMENTS, use_tqdm=False, pooling_params=PoolingParams(use_activation=False))
    np.testing.assert_allclose([1 / (1 + np.exp(-each.outputs.score)) for each in raw], wanted, atol=1e-5, rtol=0)
    pairs = crossing.score([QUERY] * 3, DOCUMENTS, use_tqdm=False)
    np.testing.assert_allclose([each.outputs.score for each in pairs], wanted, atol=1e-5, rtol=0)
    template = "{% for each in messages %}{{ each.role }}: {{ each.content }} {% endfor %}"
    (templated,) = crossing.score(QUERY, DOCUMENTS[0], use_tqdm=False, chat_template=template)
    with torch.no_grad():
        inputs = tokenizer(f"query: {QUERY} document: {DOCUMENTS[0]} ", return_tensors="pt")
        wanted = torch.sigmoid(model(**inputs).logits[:, 0]).numpy()
    assert templated.prompt_token_ids == inputs["input_ids"][0].tolist()
    np.testing.assert_allclose(templated.outputs.score, wanted[0], atol=1e-5, rtol=0)


def test_embeddings_and_their_angles(embedding: LLM) -> None:
    first, *others = embedding.embed([QUERY, *DOCUMENTS], use_tqdm=False)
    assert first.outputs.hidden_size == 128
    assert abs(np.linalg.norm(first.outputs.embedding) - 1) < 1e-5
    scores = embedding.score(QUERY, [*DOCUMENTS, QUERY], use_tqdm=False)
    cosines = [float(np.dot(first.outputs.embedding, each.outputs.embedding)) for each in (*others, first)]
    np.testing.assert_allclose([each.outputs.score for each in scores], cosines, atol=1e-6, rtol=0)
    (tokens,) = embedding.encode(QUERY, pooling_task="token_embed", use_tqdm=False)
    assert tokens.outputs.data.shape == (len(tokens.prompt_token_ids), 128)
    (ids,) = embedding.embed([first.prompt_token_ids], use_tqdm=False)
    # Alone it runs in another shape, whose additions may have another order.
    np.testing.assert_allclose(ids.outputs.embedding, first.outputs.embedding, atol=1e-6, rtol=0)
    (cut,) = embedding.embed("cat " * 400, pooling_params=PoolingParams(truncate_prompt_tokens=-1), use_tqdm=False)
    assert len(cut.prompt_token_ids) == 64


def test_wrong_calls_say_what_to_do(embedding: LLM, crossing: LLM) -> None:
    with pytest.raises(RequestError, match=r"is a pooling model.*runner='generate'"):
        embedding.generate("Once")
    with pytest.raises(RequestError, match="demo supports embed, token_embed"):
        embedding.classify("Once")
    with pytest.raises(RequestError, match="prompt 1: the text has 401 tokens, but this model accepts at most 64"):
        embedding.embed(["Once", "cat " * 400])
    with pytest.raises(RequestError, match="expected a string or a list of strings"):
        embedding.score("Once", [3])  # type: ignore[list-item]
    with pytest.raises(RequestError, match="2 first texts and 3 second texts"):
        crossing.score(["a", "b"], ["a", "b", "c"])
    with pytest.raises(RequestError, match="use_activation does not apply to embedding models"):
        embedding.score("a", "b", pooling_params=PoolingParams(use_activation=False))
    with pytest.raises(RequestError, match="chat_template does not apply to embedding models"):
        embedding.score("a", "b", chat_template="{{ messages[0].content }}")
    neutral: dict[str, Any] = {"late_chunking_params": None, "requires_token_ids": False}
    assert PoolingParams(**neutral) == PoolingParams()
    with pytest.raises(RequestError, match="late_chunking_params"):
        PoolingParams(**{**neutral, "late_chunking_params": 3})
    with pytest.raises(RequestError, match="task='embed' in pooling_params contradicts the requested task 'classify'"):
        crossing.classify("a", pooling_params=PoolingParams(task="embed"))


def test_models_for_the_other_use_say_so(cross_encoder: Path) -> None:
    with pytest.raises(
        ConfigError, match="BertForSequenceClassification is not a generative model, it is made to classify"
    ):
        LLM(str(cross_encoder), runner="generate", **OPTIONS)
    with pytest.raises(ConfigError, match="is a pooling model: use LLM"):
        LLMEngine.from_config(EngineConfig.from_options({"model": str(cross_encoder), **QUICK}))


def test_sentence_transformers_decide(tmp_path: Path) -> None:
    save(tmp_path, "BertModel")
    save_tokenizer(tmp_path)
    save_modules(tmp_path, "mean_tokens", normalize=False, max_length=20)
    with LLM(str(tmp_path), background_engine=True, **OPTIONS) as llm:
        info = llm._open().engine.info
        assert info.pooling is not None
        assert (info.pooling.pooling_type, info.max_model_len) == ("mean", 20)
        (found,) = llm.embed("the cat", use_tqdm=False)
        assert abs(np.linalg.norm(found.outputs.embedding) - 1) > 1e-3
    modules = json.loads((tmp_path / "modules.json").read_text())
    modules.append({"idx": 2, "name": "2", "path": "2_CNN", "type": "sentence_transformers.models.CNN"})
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ConfigError, match="module 'CNN' is not supported"):
        LLM(str(tmp_path), **OPTIONS)
