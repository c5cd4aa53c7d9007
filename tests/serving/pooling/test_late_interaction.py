"""A model that makes a vector of each token: MaxSim of two texts, offline and over HTTP."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoTokenizer

from jaxllm import LLM, PoolingParams
from jaxllm.errors import RequestError
from tests.jaxllm.pooling.checkpoints import save, unit
from tests.jaxllm.pooling.driving import QUICK
from tests.serving.pooling.conftest import save_tokenizer
from tests.serving.server_process import running

OPTIONS: dict[str, Any] = {**QUICK, "show_progress": False}
QUERY, DOCUMENTS = "what color is the sky", ["the sky is blue", "apples are red", "the cat sat on the mat"]


@pytest.fixture(scope="module")
def colbert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a random BERT with a layer after each token."""
    folder = tmp_path_factory.mktemp("colbert")
    save(folder, "BertModel")
    tensors = load_file(folder / "model.safetensors")
    torch.manual_seed(2)
    save_file({**tensors, "linear.weight": torch.randn(12, 32)}, folder / "model.safetensors")
    save_tokenizer(folder)
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "architectures": ["HF_ColBERT"], "dim": 12}))
    return folder


@pytest.fixture(scope="module")
def expected(colbert: Path) -> list[float]:
    """MaxSim of the query with each document, by transformers and numpy."""
    model, tokenizer = AutoModel.from_pretrained(colbert), AutoTokenizer.from_pretrained(colbert)
    layer = load_file(colbert / "model.safetensors")["linear.weight"]

    def vectors(text: str) -> np.ndarray:
        with torch.no_grad():
            hidden = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        return unit((hidden @ layer.T).numpy())

    return [float((vectors(QUERY) @ vectors(document).T).max(axis=1).sum()) for document in DOCUMENTS]


@pytest.fixture(scope="module")
def late(colbert: Path) -> Iterator[LLM]:
    with LLM(str(colbert), **OPTIONS) as llm:
        yield llm


def test_scores_are_maxsim(late: LLM, expected: list[float]) -> None:
    found = late.score(QUERY, DOCUMENTS, use_tqdm=False)
    np.testing.assert_allclose([each.outputs.score for each in found], expected, atol=1e-4, rtol=0)
    (vectors,) = late.encode(QUERY, use_tqdm=False)
    assert vectors.outputs.data.shape == (len(vectors.prompt_token_ids), 12)
    np.testing.assert_allclose(np.linalg.norm(vectors.outputs.data, axis=1), 1.0, atol=1e-5)


def test_what_such_a_model_does_not_do(late: LLM) -> None:
    with pytest.raises(RequestError, match="supports token_embed"):
        late.embed(QUERY)
    with pytest.raises(RequestError, match="supports token_embed"):
        late.reward(QUERY)
    with pytest.raises(RequestError, match="whose scores are cosines"):
        late.score(QUERY, DOCUMENTS, pooling_params=PoolingParams(use_activation=True))


@pytest.mark.slow
def test_over_http(tmp_path: Path, colbert: Path, expected: list[float]) -> None:
    flags = ("--host=127.0.0.1", "--port=0", "--optimization-level=0", "--enforce-eager", "--max-num-seqs=8")
    with running(tmp_path / "log", str(colbert), *flags) as process:
        scores = httpx.post(f"{process.url}/score", json={"text_1": QUERY, "text_2": DOCUMENTS}, timeout=120).json()
        ranked = httpx.post(f"{process.url}/rerank", json={"query": QUERY, "documents": DOCUMENTS}, timeout=120).json()
        pooled = httpx.post(f"{process.url}/pooling", json={"input": QUERY, "task": "token_embed"}, timeout=120).json()
        refused = httpx.post(f"{process.url}/v1/embeddings", json={"input": QUERY}, timeout=120)
        process.signal(signal.SIGTERM)
        assert process.end() == 0, process.log
    np.testing.assert_allclose([each["score"] for each in scores["data"]], expected, atol=1e-4, rtol=0)
    assert [each["index"] for each in ranked["results"]] == np.argsort(expected)[::-1].tolist()
    assert np.array(pooled["data"][0]["data"]).shape == (pooled["usage"]["prompt_tokens"], 12)
    assert refused.status_code == 400
    assert "supports token_embed" in refused.json()["error"]["message"]
