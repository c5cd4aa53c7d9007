"""Images in embeddings, over HTTP and in scripts: vectors of transformers, and errors for their sender alone."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from jaxllm import LLM, PoolingParams
from jaxllm.errors import RequestError
from tests.e2e.images.pictures import data_url, message, picture
from tests.e2e.images.qwen import FAMILIES
from tests.e2e.images.qwen_reference import MARKER, Reference
from tests.serving.server_process import ServerProcess, running

TEXT = f"user:{MARKER}What is this?"
"""What the chat template makes of an image and a question."""


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory, demo_folder: Path) -> Reference:
    return Reference(FAMILIES["qwen2_vl"], tmp_path_factory.mktemp("seeing"), demo_folder)


@pytest.fixture(scope="module")
def server(reference: Reference, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    quick = ("--optimization-level", "0", "--enforce-eager", "--max-num-seqs", "8", "--max-image-patches", "144")
    flags = ("--host", "127.0.0.1", "--port", "0", "--max-model-len", "256", "--runner", "pooling", *quick)
    log = tmp_path_factory.mktemp("server") / "log"
    with running(log, str(reference.folder), *flags, "--served-model-name", "seeing") as made:
        yield made
        assert "Traceback" not in made.log, made.log


def _wanted(reference: Reference, text: str, images: list[Any]) -> tuple[int, np.ndarray]:
    """Tokens of a prompt, and its vector."""
    ids, states = reference.states(text, images)
    return len(ids), states[-1] / np.linalg.norm(states[-1])


def test_chat_embeddings(server: ServerProcess, reference: Reference) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    image = picture(1)
    body = {"messages": message(data_url(image), "What is this?"), "model": "seeing", "encoding_format": "float"}
    found = client.post("/embeddings", cast_to=openai.types.CreateEmbeddingResponse, body=body)
    count, vector = _wanted(reference, TEXT, [image])
    assert found.usage.prompt_tokens == count
    np.testing.assert_allclose(found.data[0].embedding, vector, atol=1e-4)
    text = client.embeddings.create(model="seeing", input="What is this?", encoding_format="float")
    np.testing.assert_allclose(text.data[0].embedding, _wanted(reference, "What is this?", [])[1], atol=1e-4)


def test_pooling_of_tokens(server: ServerProcess, reference: Reference) -> None:
    image = picture(2, 30, 40)
    part = {"type": "image_url", "image_url": {"url": data_url(image)}, "uuid": "thirty"}
    body: dict[str, Any] = {"task": "token_embed", "normalize": False}
    for content in ([part], [{**part, "image_url": None}]):
        sent = {**body, "messages": [{"role": "user", "content": content}]}
        answer = httpx.post(f"{server.url}/pooling", json=sent, timeout=60)
        assert answer.status_code == 200, answer.text
        found = np.array(answer.json()["data"][0]["data"])
        np.testing.assert_allclose(found, reference.states(f"user:{MARKER}", [image])[1], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("data:image/png;base64,AAAA", "the data is no image"),
        ("http://169.254.169.254/latest/meta-data", "not public"),
        ("file:///etc/passwd", "file:// URLs are not allowed"),
    ],
)
def test_wrong_images(server: ServerProcess, url: str, reason: str) -> None:
    answer = httpx.post(f"{server.url}/v1/embeddings", json={"messages": message("a", url)}, timeout=60)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == "messages[0].content[1]"
    assert reason in error["message"]


def test_images_are_not_cut(server: ServerProcess) -> None:
    body = {"messages": message(data_url(picture(1)), "What is this?"), "truncate_prompt_tokens": 12}
    answer = httpx.post(f"{server.url}/v1/embeddings", json=body, timeout=60)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "truncate_prompt_tokens")
    assert "cannot be cut" in error["message"]
    fits = httpx.post(f"{server.url}/v1/embeddings", json={**body, "truncate_prompt_tokens": 200}, timeout=60)
    assert fits.status_code == 200, fits.text


def test_in_a_script(reference: Reference) -> None:
    options: dict[str, Any] = {"max_model_len": 256, "max_num_seqs": 4, "optimization_level": 0}
    image = picture(5)
    prompt: Any = {"prompt": TEXT, "multi_modal_data": {"image": image}}
    with LLM(str(reference.folder), runner="pooling", **options, enforce_eager=True, max_image_patches=144) as llm:
        seen, text = llm.embed([prompt, "What is this?"], use_tqdm=False)
        (states,) = llm.encode(prompt, PoolingParams(normalize=False), pooling_task="token_embed", use_tqdm=False)
        with pytest.raises(RequestError, match=r"1 places for images .* but 0 images"):
            llm.embed({"prompt": TEXT, "multi_modal_data": {"video": [np.zeros((2, 8, 8, 3), np.uint8)]}})
        with pytest.raises(RequestError, match="takes no sound"):
            llm.embed({"prompt": "a", "multi_modal_data": {"audio": (np.zeros(100, np.float32), 16000)}})
    count, vector = _wanted(reference, TEXT, [image])
    assert len(seen.prompt_token_ids) == count
    np.testing.assert_allclose(seen.outputs.embedding, vector, atol=1e-4)
    np.testing.assert_allclose(text.outputs.embedding, _wanted(reference, "What is this?", [])[1], atol=1e-4)
    np.testing.assert_allclose(states.outputs.data, reference.states(TEXT, [image])[1], atol=1e-4, rtol=1e-4)


def _user(reference: Reference, content: list[Any], images: list[Any]) -> np.ndarray:
    """The vector of a user's message."""
    text = f"user:{''.join(part.get('text', MARKER) for part in content)}"
    return _wanted(reference, text, images)[1]


def test_scores_of_images(server: ServerProcess, reference: Reference) -> None:
    images = [picture(1), picture(2, 30, 40)]
    parts = [{"type": "image_url", "image_url": {"url": data_url(image)}} for image in images]
    text = {"type": "text", "text": "a cat"}
    documents = [{"content": [parts[0]]}, {"content": [text, parts[1]]}, "a cat"]
    query = _user(reference, [text], [])
    found = [
        _user(reference, [parts[0]], images[:1]),
        _user(reference, [text, parts[1]], images[1:]),
        _user(reference, [text], []),
    ]
    wanted = [float(query @ each) for each in found]
    scores = httpx.post(f"{server.url}/score", json={"data_1": "a cat", "data_2": documents}, timeout=60).json()
    np.testing.assert_allclose([each["score"] for each in scores["data"]], wanted, atol=1e-4)
    ranked = httpx.post(f"{server.url}/rerank", json={"query": "a cat", "documents": documents}, timeout=60).json()
    assert [each["index"] for each in ranked["results"]] == sorted(range(3), key=lambda index: -wanted[index])
    assert {each["index"]: each["document"]["text"] for each in ranked["results"]} == {0: "", 1: "a cat", 2: "a cat"}
    for name, body in (
        ("data_2[1].content[0]", {"data_1": "a", "data_2": ["b", {"content": [{**parts[0], "image_url": "x"}]}]}),
        ("max_tokens_per_doc", {"data_1": "a", "data_2": documents, "max_tokens_per_doc": 3}),
    ):
        answer = httpx.post(f"{server.url}/score", json=body, timeout=60)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, name), answer.text


def test_coheres_images(server: ServerProcess, reference: Reference) -> None:
    image = picture(3)
    part = {"type": "image_url", "image_url": {"url": data_url(image)}}
    wanted = _user(reference, [part], [image])
    for body in ({"images": [data_url(image)]}, {"inputs": [{"content": [part]}]}):
        answer = httpx.post(f"{server.url}/v2/embed", json={"input_type": "search_document", **body}, timeout=60)
        assert answer.status_code == 200, answer.text
        np.testing.assert_allclose(answer.json()["embeddings"]["float"][0], wanted, atol=1e-4)
    wrong = httpx.post(f"{server.url}/v2/embed", json={"images": ["cat.png"]}, timeout=60)
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "images[0].content[0]"), wrong.text
