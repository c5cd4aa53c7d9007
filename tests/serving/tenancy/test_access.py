"""Who a request belongs to, and that what belongs to one is hidden from others."""

import itertools
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from openai import NotFoundError, OpenAI

from jaxllm.serving.tenancy.access import owner_by_address
from jaxllm.serving.tenancy.keys import KeyRing, hashed_key, plain_key
from tests.serving.server_process import SMALL, ServerProcess, running

SHORT: dict[str, Any] = {"model": "demo", "max_output_tokens": 4, "temperature": 0}


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("10.0.0.1", "ip:10.0.0.1"),
        ("::ffff:10.0.0.1", "ip:10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "ip:2001:db8:1:2::/64"),
        ("2001:db8:1:2::1", "ip:2001:db8:1:2::/64"),
        ("a name\n" + 100 * "x", "host:a name_" + 57 * "x"),
        (None, "local"),
        ("", "local"),
    ],
)
def test_the_owner_of_an_address(host: str | None, name: str) -> None:
    client = None if host is None else (host, 1234)
    assert owner_by_address({"type": "http", "client": client}).name == name


def test_keys_of_one_name_are_one_owner() -> None:
    ring = KeyRing([plain_key("one"), plain_key("two"), *(hashed_key(bytes([n]), "ada", 2.0) for n in range(2))])
    one, two = ring.find(b"one"), ring.find(b"two")
    assert one is not None
    assert two is not None
    assert one.owner != two.owner
    assert "one" not in one.owner.name
    assert ring.find(b"three") is None
    assert hashed_key(b"\0", "ada").owner == hashed_key(b"\1", "ada").owner


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    log = tmp_path_factory.mktemp("tenancy") / "log"
    flags = ("--isolate-prefix-cache", "--trusted-proxies", "127.0.0.1")
    with running(log, "demo", *SMALL, *flags, environment={"JAXLLM_API_KEY": "of-ada,of-ben"}) as process:
        yield process
        process.signal(signal.SIGTERM)
        assert process.end() == 0, process.log
    assert "Traceback" not in process.log


@pytest.fixture
def ada(server: ServerProcess) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="of-ada", max_retries=0, timeout=120) as client:
        yield client


@pytest.fixture
def ben(server: ServerProcess) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="of-ben", max_retries=0, timeout=120) as client:
        yield client


def test_responses_belong_to_their_owner(ada: OpenAI, ben: OpenAI) -> None:
    given: Any = [{"role": "user", "content": "the secret", "id": "msg_1"}]
    stored = ada.responses.create(input=given, **SHORT)
    for attempt in (
        ben.responses.retrieve,
        ben.responses.delete,
        ben.responses.cancel,
        ben.responses.input_items.list,
        lambda name: ben.responses.create(input="Go on.", previous_response_id=name, **SHORT),
    ):
        with pytest.raises(NotFoundError) as hidden:
            attempt(stored.id)
        with pytest.raises(NotFoundError) as unknown:
            attempt("resp_unknown")
        assert str(hidden.value).replace(stored.id, "resp_unknown") == str(unknown.value)
    assert ada.responses.retrieve(stored.id).id == stored.id
    assert ada.responses.create(input="Go on.", previous_response_id=stored.id, **SHORT).output


def test_items_belong_to_their_owner(server: ServerProcess) -> None:
    def ask(key: str, item: dict[str, str]) -> httpx.Response:
        headers = {"Authorization": f"Bearer {key}"}
        body = {"input": [item], **SHORT}
        return httpx.post(f"{server.url}/v1/responses", json=body, headers=headers, timeout=120)

    reference = {"type": "item_reference", "id": "msg_shared"}
    given = {"role": "user", "content": "the secret", "id": "msg_shared"}
    first = ask("of-ada", given)
    assert first.status_code == 200, first.text
    assert ask("of-ada", reference).status_code == 200
    hidden, unknown = ask("of-ben", reference), ask("of-ben", {**reference, "id": "msg_other"})
    assert hidden.status_code == unknown.status_code == 400
    assert hidden.text.replace("msg_shared", "msg_other") == unknown.text
    # Both may choose the same id, and each finds its own.
    assert ask("of-ben", {**given, "content": "another"}).status_code == 200
    counts = [ask(key, reference).json()["usage"]["input_tokens"] for key in ("of-ada", "of-ben")]
    assert counts[0] != counts[1]


def test_each_key_has_a_prefix_cache_of_its_own(ada: OpenAI, ben: OpenAI) -> None:
    def cached(client: OpenAI, **fields: Any) -> int:
        made = client.completions.create(
            model="demo", prompt="Once upon a time. " * 20, max_tokens=1, extra_body=fields
        )
        assert made.usage is not None
        assert made.usage.prompt_tokens_details is not None
        return made.usage.prompt_tokens_details.cached_tokens or 0

    for client, salt in itertools.product((ada, ben), ({}, {"cache_salt": "x"})):
        assert cached(client, **salt) == 0
        assert cached(client, **salt) > 0


def test_a_public_path_needs_no_key(server: ServerProcess) -> None:
    assert httpx.get(f"{server.url}/health").status_code == 200
    assert httpx.get(f"{server.url}/v1/models").status_code == 401
