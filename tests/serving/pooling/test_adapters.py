"""Pooling models with LoRA adapters, offline and over HTTP."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from jaxllm import LLM, LoRARequest
from jaxllm.errors import RequestError
from tests.adapter_folders import write_adapter
from tests.jaxllm.pooling.driving import CACHED, QUICK
from tests.serving.server_process import running

TEXTS = ["the sky is blue", "apples are red", "once upon a time"]
LORA: dict[str, Any] = {"enable_lora": True, "max_loras": 2, "max_lora_rank": 8}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_adapter(tmp_path_factory.mktemp("adapter") / "own", scale=0.3)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("demo", runner="pooling", max_model_len=64, show_progress=False, **QUICK, **LORA) as made:
        yield made


def vectors(found: Any) -> np.ndarray:
    return np.array([each.outputs.embedding for each in found])


def test_offline(llm: LLM, folder: Path) -> None:
    own = LoRARequest("own", 1, str(folder))
    base = vectors(llm.embed(TEXTS, use_tqdm=False))
    adapted = vectors(llm.embed(TEXTS, use_tqdm=False, lora_request=own))
    mixed = vectors(llm.embed(TEXTS, use_tqdm=False, lora_request=[own, None, own]))
    assert np.abs(base - adapted).max() > 0.01
    np.testing.assert_allclose(mixed, np.stack([adapted[0], base[1], adapted[2]]), atol=1e-6)
    encoded = llm.encode(TEXTS[:1], use_tqdm=False, lora_request=own)
    np.testing.assert_allclose(encoded[0].outputs.data, adapted[0], atol=1e-6)
    (score,) = llm.score(TEXTS[0], TEXTS[1], use_tqdm=False, lora_request=own)
    assert abs(score.outputs.score - float(adapted[0] @ adapted[1])) < 1e-5
    assert llm.add_lora(own)
    assert llm.pin_lora(1)
    assert llm.list_loras() == {1}
    assert llm.remove_lora(1)
    with pytest.raises(RequestError, match="lora_request: expected a LoRARequest"):
        llm.embed(TEXTS, use_tqdm=False, lora_request="own")  # type: ignore[arg-type]
    with pytest.raises(RequestError, match=r"adapter 'none'.*adapter_config.json is not there"):
        llm.embed(TEXTS[0], use_tqdm=False, lora_request=LoRARequest("none", 2, str(folder / "nothing")))
    with pytest.raises(RequestError, match="a pooling model cannot sleep"):
        llm.sleep()


def test_in_another_process(folder: Path) -> None:
    options = {**QUICK, **CACHED, **LORA, "data_parallel_size": 2}
    with LLM("demo", runner="pooling", max_model_len=64, show_progress=False, **options) as llm:
        own = LoRARequest("own", 1, str(folder))
        assert llm.add_lora(own)
        base = vectors(llm.embed(TEXTS, use_tqdm=False))
        mixed = vectors(llm.embed(TEXTS, use_tqdm=False, lora_request=[own, None, None]))
    np.testing.assert_allclose(mixed[1:], base[1:], atol=1e-6)
    assert np.abs(mixed[0] - base[0]).max() > 0.01


def test_over_http(tmp_path: Path, folder: Path) -> None:
    flags = (
        *("demo", "--runner=pooling", "--host=127.0.0.1", "--port=0", "--optimization-level=0", "--max-model-len=64"),
        *("--max-num-seqs=8", "--max-num-batched-tokens=64", "--strict-compilation", "--enforce-eager"),
        *("--enable-lora", "--max-lora-rank=8", f"--lora-modules=own={folder}", f"--lora-dir={folder.parent}"),
    )
    with running(tmp_path / "log", *flags) as server, httpx.Client(base_url=server.url, timeout=120) as http:

        def embeddings(model: str) -> np.ndarray:
            answer = http.post("/v1/embeddings", json={"model": model, "input": TEXTS}).json()
            assert answer["model"] == model
            return np.array([each["embedding"] for each in answer["data"]])

        base, own = embeddings("demo"), embeddings("own")
        assert np.abs(base - own).max() > 0.01
        pooled = http.post("/pooling", json={"model": "own", "input": TEXTS}).json()
        np.testing.assert_allclose([each["data"] for each in pooled["data"]], own, atol=1e-6)
        body = {"model": "own", "texts": TEXTS, "input_type": "search_document", "embedding_types": ["float"]}
        np.testing.assert_allclose(http.post("/v2/embed", json=body).json()["embeddings"]["float"], own, atol=1e-6)
        score = http.post("/score", json={"model": "own", "text_1": TEXTS[0], "text_2": TEXTS[1]}).json()
        assert abs(score["data"][0]["score"] - float(own[0] @ own[1])) < 1e-5
        ranked = http.post("/rerank", json={"model": "own", "query": TEXTS[0], "documents": TEXTS[1:2]}).json()
        assert abs(ranked["results"][0]["relevance_score"] - float(own[0] @ own[1])) < 1e-5
        assert http.post("/v1/embeddings", json={"model": "other", "input": TEXTS}).status_code == 404
        assert [each["id"] for each in http.get("/v1/models").json()["data"]] == ["demo", "own"]
        loaded = http.post("/v1/load_lora_adapter", json={"lora_name": "second", "lora_path": folder.name})
        assert loaded.status_code == 200, loaded.text
        np.testing.assert_allclose(embeddings("second"), own, atol=1e-6)
        assert http.post("/v1/unload_lora_adapter", json={"lora_name": "second"}).status_code == 200
        assert http.post("/v1/embeddings", json={"model": "second", "input": TEXTS}).status_code == 404
