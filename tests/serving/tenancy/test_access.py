"""Who a request belongs to, and that what belongs to one is hidden from others."""

import asyncio
import itertools
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import NotFoundError, OpenAI
from starlette.applications import Starlette
from starlette.requests import Request

from jaxllm.serving.http.operation import guarded
from jaxllm.serving.server.router import OPERATIONS
from jaxllm.serving.tenancy.access import Access, owner_by_address
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


@pytest.mark.parametrize(
    ("keys", "clients", "operators"),
    [
        ([], "", set()),
        (["one"], "", {"one"}),
        (["one", "two"], "", set()),
        (["boss"], "- {name: ada, keys: [a]}", {"boss"}),
        (["boss", "chief"], "- {name: ada, keys: [a]}", {"boss", "chief"}),
        ([], "- {name: ada, keys: [a]}\n- {name: ben, keys: [b]}", set()),
        ([], "- {name: ada, keys: [a], operator: true}\n- {name: ben, keys: [b]}", {"a"}),
        ([], "- {name: ada, keys: [a]}", {"a"}),
    ],
)
def test_which_keys_are_the_operators(keys: list[str], clients: str, operators: set[str], tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    if clients:
        file.write_text(f"clients:\n{clients}\n")
    access = Access(keys, str(file) if clients else None)
    found = {name: access.find(name.encode()) for name in (*keys, "a", "b")}
    assert {name for name, key in found.items() if key is not None and key.is_operator} == operators


def test_what_concerns_other_clients_is_for_the_operator() -> None:
    protected = {each.path for each in OPERATIONS if each.operator}
    assert protected >= {
        "/start_profile",
        "/stop_profile",
        "/abort_requests",
        "/sleep",
        "/wake_up",
        "/pause",
        "/resume",
    }
    assert protected >= {"/update_weights", "/server_info", "/scale", "/scale_elastic_ep", "/debug/state"}
    assert not any(each.public for each in OPERATIONS if each.operator)


async def _answer(scope: dict[str, Any]) -> int:
    operation = next(each for each in OPERATIONS if each.path == "/abort_requests")
    app = Starlette()
    request = Request({"type": "http", "method": "POST", "path": "/abort_requests", "headers": [], "app": app, **scope})
    return (await guarded(operation.checked_handler)(request)).status_code


def test_a_clients_key_is_refused() -> None:
    for scope in ({}, {"is_operator": False}):
        assert asyncio.run(_answer(scope)) == 403
    assert asyncio.run(_answer({"is_operator": True})) != 403
