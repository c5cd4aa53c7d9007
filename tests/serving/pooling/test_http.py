"""Embeddings, classes and scores over HTTP: OpenAI's client, langchain, the shapes of Jina and Cohere."""

import base64
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import ml_dtypes
import numpy as np
import pytest
from openai import BadRequestError, OpenAI

from jaxllm.serving.server.openapi import openapi
from tests.conftest import RunPython
from tests.serving.number_sweep import sweep
from tests.serving.server_process import ServerProcess, running

FLAGS = (
    *("--host=127.0.0.1", "--port=0", "--optimization-level=0", "--strict-compilation", "--max-model-len=64"),
    *("--max-num-seqs=8", "--max-num-batched-tokens=64", "--max-queued-requests=24", "--request-timeout=60"),
)
TEXTS = ["the sky is blue", "apples are red", "once upon a time"]


def _served(tmp_path_factory: pytest.TempPathFactory, *arguments: str) -> Iterator[ServerProcess]:
    log = tmp_path_factory.mktemp("server") / "log"
    with running(log, *arguments, *FLAGS) as process:
        yield process
        process.signal(signal.SIGTERM)
        assert process.end() == 0, process.log
    assert "Traceback" not in process.log


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    yield from _served(tmp_path_factory, "demo", "--runner=pooling", '--pooler-config={"matryoshka": true}')


@pytest.fixture(scope="module")
def crosser(tmp_path_factory: pytest.TempPathFactory, cross_encoder: Path) -> Iterator[ServerProcess]:
    yield from _served(
        tmp_path_factory, str(cross_encoder), "--served-model-name=cross", "--enforce-eager", "--api-server-count=2"
    )


@pytest.fixture(scope="module")
def client(embedder: ServerProcess) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{embedder.url}/v1", api_key="any", max_retries=0, timeout=120) as made:
        yield made


def _post(server: ServerProcess, path: str, body: Any) -> httpx.Response:
    return httpx.post(f"{server.url}{path}", json=body, timeout=120)


def test_openais_client(client: OpenAI) -> None:
    # The client asks for base64 and decodes it.
    found = client.embeddings.create(model="demo", input=TEXTS)
    plain = client.embeddings.create(model="demo", input=TEXTS, encoding_format="float")
    for index, (first, second) in enumerate(zip(found.data, plain.data, strict=True)):
        assert first.index == second.index == index
        np.testing.assert_allclose(first.embedding, second.embedding, atol=1e-6)
        assert abs(np.linalg.norm(first.embedding) - 1) < 1e-5
    assert found.usage.total_tokens == found.usage.prompt_tokens > len(TEXTS)
    short = client.embeddings.create(model="demo", input=TEXTS[0], dimensions=16).data[0].embedding
    whole = np.array(plain.data[0].embedding[:16])
    np.testing.assert_allclose(short, whole / np.linalg.norm(whole), atol=1e-5)
    ids = [[5, 6, 7], [8]]
    of_ids = client.embeddings.create(model="demo", input=ids)
    assert (len(of_ids.data), of_ids.usage.total_tokens) == (2, 4)
    with pytest.raises(BadRequestError, match="does not generate") as error:
        client.chat.completions.create(model="demo", messages=[{"role": "user", "content": "hi"}])
    assert error.value.code == "unsupported_for_model"


POOLING = (
    *("/v1/embeddings", "/v2/embed", "/pooling", "/classify", "/score", "/v1/score", "/rerank", "/v1/rerank"),
    "/v2/rerank",
)


@pytest.mark.parametrize("everything", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
def test_no_number_breaks_anything(embedder: ServerProcess, everything: bool) -> None:
    engine, before = embedder.engine().pid, _post(embedder, "/v1/embeddings", {"input": TEXTS}).json()["data"]
    with httpx.Client(base_url=embedder.url, timeout=60) as http:
        count, wrong = sweep(http, everything=everything, only=POOLING)
    assert not wrong, "\n".join(wrong[:20])
    assert count > 300
    assert embedder.engine().pid == engine
    assert _post(embedder, "/v1/embeddings", {"input": TEXTS}).json()["data"] == before


@pytest.mark.parametrize("order", ["native", "little", "big"])
@pytest.mark.parametrize(
    ("name", "dtype", "tolerance"),
    [
        ("float32", np.float32, 1e-6),
        ("float16", np.float16, 1e-3),
        ("bfloat16", ml_dtypes.bfloat16, 1e-2),
        ("fp8_e4m3", ml_dtypes.float8_e4m3fn, 0.05),
        ("fp8_e5m2", ml_dtypes.float8_e5m2, 0.1),
    ],
)
def test_forms_of_numbers(embedder: ServerProcess, name: str, dtype: Any, tolerance: float, order: str) -> None:
    plain = [each["embedding"] for each in _post(embedder, "/v1/embeddings", {"input": TEXTS}).json()["data"]]
    body = {"input": TEXTS, "embed_dtype": name, "endianness": order}

    def read(data: bytes) -> np.ndarray:
        words = np.frombuffer(data, f"{'>' if order == 'big' else '<'}u{np.dtype(dtype).itemsize}")
        return words.astype(words.dtype.newbyteorder("=")).view(dtype).astype(np.float32)

    encoded = _post(embedder, "/v1/embeddings", {**body, "encoding_format": "base64"}).json()["data"]
    for each, expected in zip(encoded, plain, strict=True):
        np.testing.assert_allclose(read(base64.b64decode(each["embedding"])), expected, atol=tolerance)
    answer = _post(embedder, "/v1/embeddings", {**body, "encoding_format": "bytes"})
    metadata = json.loads(answer.headers["metadata"])
    assert answer.headers["content-type"] == "application/octet-stream"
    for each, expected in zip(metadata["data"], plain, strict=True):
        assert (each["embed_dtype"], each["shape"]) == (name, [128])
        assert each["endianness"] == ("big" if order == "big" else "little")
        np.testing.assert_allclose(read(answer.content[each["start"] : each["end"]]), expected, atol=tolerance)
    assert metadata["usage"]["prompt_tokens"] > 0
    only = _post(embedder, "/pooling", {**body, "encoding_format": "bytes_only"})
    assert (only.content, "metadata" in only.headers) == (answer.content, False)


def test_coheres_embeddings(embedder: ServerProcess) -> None:
    plain = np.array([each["embedding"] for each in _post(embedder, "/v1/embeddings", {"input": TEXTS}).json()["data"]])
    types = ["float", "base64", "binary", "ubinary"]
    body = {"model": "demo", "texts": TEXTS, "input_type": "search_document", "embedding_types": types}
    answer = _post(embedder, "/v2/embed", body).json()
    assert set(answer["embeddings"]) == set(types)
    np.testing.assert_allclose(answer["embeddings"]["float"], plain, atol=1e-6)
    decoded = [np.frombuffer(base64.b64decode(each), "<f4") for each in answer["embeddings"]["base64"]]
    np.testing.assert_allclose(decoded, plain, atol=1e-6)
    bits = np.packbits(np.array(answer["embeddings"]["float"]) >= 0, axis=1)
    assert answer["embeddings"]["ubinary"] == bits.tolist()
    assert answer["embeddings"]["binary"] == (bits.astype(int) - 128).tolist()
    assert (answer["texts"], answer["response_type"]) == (TEXTS, "embeddings_by_type")
    assert answer["meta"]["billed_units"]["input_tokens"] > len(TEXTS)
    parts = {"inputs": [{"content": [{"type": "text", "text": TEXTS[0]}]}]}
    again = _post(embedder, "/v2/embed", parts).json()
    assert set(again["embeddings"]) == {"float"}
    np.testing.assert_allclose(again["embeddings"]["float"], plain[:1], atol=1e-6)


def test_texts_lose_either_end(embedder: ServerProcess) -> None:
    long = "one two three four five six seven eight nine ten"
    ids = _post(embedder, "/tokenize", {"prompt": long}).json()["tokens"]

    def embed(**body: Any) -> list[float]:
        found: list[float] = _post(embedder, "/v2/embed", {"max_tokens": 4, **body}).json()["embeddings"]["float"][0]
        return found

    for truncate, kept, side in (("END", ids[:4], "right"), ("START", ids[-4:], "left")):
        expected = _post(embedder, "/v1/embeddings", {"input": [kept]}).json()["data"][0]["embedding"]
        np.testing.assert_allclose(embed(texts=[long], truncate=truncate), expected, atol=1e-5)
        cut = {"truncate_prompt_tokens": 4, "truncation_side": side}
        for given in (long, ids):
            found = _post(embedder, "/v1/embeddings", {"input": given, **cut}).json()["data"][0]["embedding"]
            np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.slow
def test_langchain(embedder: ServerProcess, run_python: RunPython) -> None:
    code = """
import sys
from langchain_openai import OpenAIEmbeddings

model = OpenAIEmbeddings(model="demo", base_url=sys.argv[1], api_key="any", check_embedding_ctx_length=False)
one, two = model.embed_documents(["the sky is blue", "apples are red"])
query = model.embed_query("the sky is blue")
assert len(one) == 128 and one != two and max(abs(a - b) for a, b in zip(one, query)) < 1e-6
"""
    done = run_python("-c", code, f"{embedder.url}/v1")
    assert done.returncode == 0, done.stdout + done.stderr


def test_pooling(embedder: ServerProcess) -> None:
    body = {"input": [TEXTS[0], "sky"], "task": "token_embed", "dimensions": 5, "normalize": False}
    lists = _post(embedder, "/pooling", body).json()
    encoded = _post(embedder, "/pooling", {**body, "encoding_format": "base64"}).json()
    for plain, other in zip(lists["data"], encoded["data"], strict=True):
        values = np.frombuffer(base64.b64decode(other["data"]), "<f4").reshape(-1, 5)
        np.testing.assert_allclose(values, plain["data"], atol=1e-5)
    messages = {"messages": [{"role": "user", "content": "hi"}]}
    rendered = _post(embedder, "/v1/embeddings", messages).json()
    tokens = _post(embedder, "/tokenize", {**messages, "add_generation_prompt": False}).json()
    assert rendered["usage"]["prompt_tokens"] == tokens["count"]


def test_jinas_and_coheres_shapes(crosser: ServerProcess) -> None:
    documents = ["apples are red", "the sky is blue", {"text": "the cat sat on the mat"}]
    texts = ["apples are red", "the sky is blue", "the cat sat on the mat"]
    score = _post(crosser, "/score", {"text_1": "what color is the sky", "text_2": texts}).json()
    scores = [each["score"] for each in score["data"]]
    assert len(set(scores)) == 3
    for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
        body = {"model": "cross", "query": "what color is the sky", "documents": documents}
        ranked = _post(crosser, path, body).json()["results"]
        found = [each["relevance_score"] for each in ranked]
        np.testing.assert_allclose(found, sorted(scores, reverse=True), atol=1e-6)
        assert [each["document"]["text"] for each in ranked] == [texts[each["index"]] for each in ranked]
        mixed = _post(crosser, path, {**body, "documents": documents[::-1]}).json()["results"]
        assert [each["document"] for each in mixed] == [each["document"] for each in ranked]
        (best,) = _post(crosser, path, {**body, "top_n": 1, "return_documents": False}).json()["results"]
        assert set(best) == {"index", "relevance_score"}
        assert best["index"] == ranked[0]["index"]
    classes = _post(crosser, "/classify", {"input": texts}).json()["data"]
    invoked = _post(crosser, "/invocations", {"input": texts}).json()["data"]
    for one, other in zip(invoked, classes, strict=True):
        # Texts may have come together in other batches, whose sums end otherwise.
        np.testing.assert_allclose(one.pop("probs"), other["probs"], atol=1e-6)
        assert one.items() <= other.items()
    again = _post(crosser, "/invocations", {"model": "cross", "query": "apples", "documents": texts}).json()
    assert len(again["results"]) == len(texts)
    assert [(each["label"], each["num_classes"], len(each["probs"])) for each in classes] == [("LABEL_0", 1, 1)] * 3


def test_other_names_of_the_two_texts(crosser: ServerProcess, embedder: ServerProcess) -> None:
    for server in (crosser, embedder):
        first = _post(server, "/score", {"text_1": TEXTS[0], "text_2": TEXTS}).json()
        for one, two in (("data_1", "data_2"), ("queries", "documents"), ("queries", "items")):
            other = _post(server, "/v1/score", {one: TEXTS[0], two: TEXTS}).json()
            expected, scores = ([each["score"] for each in made["data"]] for made in (first, other))
            np.testing.assert_allclose(scores, expected, atol=1e-5)
            assert other["usage"] == first["usage"]


def test_documents_are_cut(crosser: ServerProcess) -> None:
    long = ["apples are red and " * 5, "the sky"]
    cut = {"query": "apples", "documents": long, "max_tokens_per_doc": 4}
    plain = _post(crosser, "/rerank", {"query": "apples", "documents": long}).json()
    short = _post(crosser, "/rerank", cut).json()
    usage = short["usage"]
    assert usage["prompt_tokens"] == usage["total_tokens"] < plain["usage"]["total_tokens"]
    assert plain["usage"]["prompt_tokens"] == plain["usage"]["total_tokens"]
    assert {each["document"]["text"] for each in short["results"]} == set(long), "as they were given"
    body = {"queries": long[0], "items": long[0]}
    whole = _post(crosser, "/score", body).json()["usage"]["prompt_tokens"]
    both = _post(crosser, "/score", {**body, "max_tokens_per_query": 4, "max_tokens_per_doc": 3}).json()
    assert both["usage"]["prompt_tokens"] < whole / 2
    assert _post(crosser, "/rerank", {**cut, "max_tokens_per_doc": 0}).json()["usage"] == plain["usage"]


@pytest.mark.parametrize(
    ("path", "body", "param", "message"),
    [
        ("/v1/embeddings", {}, "input", "give exactly one of input and messages"),
        ("/v1/embeddings", {"input": []}, "input", "the list is empty"),
        ("/v1/embeddings", {"input": ["a"] * 33}, "input", "at most 32"),
        ("/v1/embeddings", {"input": ["sky", "cat " * 400]}, "input", "prompt 1: the text has 401 tokens"),
        ("/v1/embeddings", {"input": [5, 99999]}, "input", "prompt token 1 is 99999"),
        ("/v1/embeddings", {"input": "a", "encoding_format": "hex"}, "encoding_format", "choose float, base64"),
        ("/v1/embeddings", {"input": "a", "dimensions": 500}, "dimensions", "have 128"),
        ("/v1/embeddings", {"input": "a", "dimension": 5}, "dimension", "did you mean 'dimensions'"),
        ("/v1/embeddings", {"input": "a", "priority": 1}, "priority", "--scheduling-policy priority"),
        ("/v1/embeddings", {"input": "a", "embed_dtype": "float64"}, "embed_dtype", "float16"),
        ("/v1/embeddings", {"input": "a", "endianness": "middle"}, "endianness", "native, little or big"),
        ("/v2/embed", {}, "texts", "give exactly one of texts, inputs"),
        ("/v2/embed", {"texts": []}, "texts", "the list is empty"),
        ("/v2/embed", {"texts": ["a"], "input_type": "music"}, "input_type", "search_query"),
        ("/v2/embed", {"texts": ["a"], "embedding_types": ["int8"]}, "embedding_types[0]", "nvalid"),
        ("/v2/embed", {"texts": ["a"], "output_dimension": 500}, "output_dimension", "have 128"),
        ("/v2/embed", {"texts": ["a b c d"], "max_tokens": 2, "truncate": "NONE"}, "texts", "more than max_tokens=2"),
        ("/v2/embed", {"texts": ["cat " * 400], "truncate": "NONE"}, "texts", "401 tokens"),
        ("/v2/embed", {"texts": ["a"], "images": ["b"]}, "texts", "give exactly one of texts, inputs and images"),
        ("/v2/embed", {"images": ["b"]}, "images[0].content[0].type", "text only"),
        ("/pooling", {"input": "a", "task": "classify"}, "task", "supports embed, token_embed"),
        ("/classify", {"input": "a"}, "task", "supports embed, token_embed"),
        ("/score", {"text_1": ["a", "b"], "text_2": "c"}, "text_1", "2 first texts and 1 second texts"),
        ("/score", {"queries": ["a", "b"], "items": "c"}, "queries", "2 first texts and 1 second texts"),
        ("/score", {"queries": "a", "text_2": "c"}, "text_1", "got text_2, queries"),
        ("/score", {"text_1": "a"}, "text_2", "got text_1"),
        ("/score", {"data_1": "a", "data_2": "b", "text_1": "c"}, "text_2", "give text_1 and text_2, or data_1"),
        ("/score", {}, "text_1", "got none of them"),
        ("/rerank", {"query": "a", "documents": ["b"], "max_tokens_per_doc": -1}, "max_tokens_per_doc", "must be 0"),
        ("/rerank", {"query": "a", "documents": []}, "documents", "the list is empty"),
        ("/rerank", {"query": "a", "documents": ["b"], "top_n": -1}, "top_n", "must be 0 or more"),
        ("/v1/completions", {"prompt": "a"}, None, "does not generate"),
    ],
)
def test_wrong_requests(embedder: ServerProcess, path: str, body: Any, param: str | None, message: str) -> None:
    response = _post(embedder, path, body)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param), error
    assert message in error["message"]


def test_the_time_of_a_request_ends_while_the_engine_does_not_answer(embedder: ServerProcess) -> None:
    """All texts of a request end together; the engine computes nothing of them, and answers the next ones."""

    def timeouts() -> float:
        text = httpx.get(f"{embedder.url}/metrics", timeout=60).text
        return sum(map(float, re.findall(r"jaxllm:request_timeouts_total{.*} (\S+)", text)))

    before, engine = timeouts(), embedder.engine()
    engine.suspend()
    try:
        late = _post(embedder, "/v1/embeddings", {"input": TEXTS, "timeout": 0.5})
    finally:
        engine.resume()
    assert (late.status_code, late.json()["error"]["code"]) == (504, "request_timeout")
    assert late.headers["x-should-retry"] == "false"
    assert _post(embedder, "/v1/embeddings", {"input": TEXTS}).status_code == 200
    assert timeouts() == before + 1
    wrong = _post(embedder, "/v1/embeddings", {"input": "a", "timeout": 61})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "timeout")


def test_answers_are_as_documented_and_counted(embedder: ServerProcess) -> None:
    document = openapi(with_keys=False)
    calls = {
        "EmbeddingResponse": ("/v1/embeddings", {"input": TEXTS}),
        "CohereEmbedResponse": ("/v2/embed", {"texts": TEXTS, "embedding_types": ["float", "binary"]}),
        "PoolingResponse": ("/v1/pooling", {"input": TEXTS, "task": "token_embed"}),
        "ScoreResponse": ("/v1/score", {"text_1": TEXTS[0], "text_2": TEXTS}),
        "RerankResponse": ("/v2/rerank", {"query": TEXTS[0], "documents": TEXTS}),
        "ErrorResponse": ("/v1/chat/completions", {"messages": []}),
    }
    before = _metric(embedder, "request_success_total")
    for name, (path, body) in calls.items():
        schema = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
        jsonschema.validate(_post(embedder, path, body).json(), schema, cls=jsonschema.Draft202012Validator)
    assert _metric(embedder, "request_success_total") - before == 3 + 3 + 3 + 4 + 4
    assert _metric(embedder, "prompt_tokens_total") > 0
    assert _metric(embedder, "compilations_after_warmup_total") == 0


@pytest.mark.slow
def test_schemathesis_finds_no_server_error(embedder: ServerProcess) -> None:
    run = subprocess.run(
        [
            sys.executable, "-m", "schemathesis.cli", "run", f"{embedder.url}/openapi.json",
            "--checks", "all", "--exclude-checks", "positive_data_acceptance", "--max-examples", "5",
            "--phases", "examples,fuzzing", "--seed", "1", "--generation-database", "none", "--workers", "2",
            "--include-path-regex", "embeddings|pooling|classify|score|rerank",
        ],
        capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr


def _metric(server: ServerProcess, name: str) -> float:
    """Sum of a metric's samples."""
    lines = httpx.get(f"{server.url}/metrics", timeout=60).text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"jaxllm:{name}"))
