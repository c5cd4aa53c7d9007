"""The OpenAPI document against its specification, the server's answers, and thousands of made-up requests."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import msgspec
import pytest

from jaxllm.serving.openai.protocol.responses import LOGPROBS
from jaxllm.serving.server.interfaces import OPERATIONS
from jaxllm.serving.server.openapi import openapi
from tests.serving.openai.conftest import FLAGS, KEY
from tests.serving.server_process import ServerProcess, running
from tests.thinned import EVERY_CASE

DOCUMENT = openapi(with_keys=True)


def _nodes(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _nodes(item)


def test_every_reference_leads_somewhere() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    references = {node["$ref"] for node in _nodes(DOCUMENT) if "$ref" in node}
    assert {f"#/components/schemas/{name}" for name in schemas} >= references
    for name, schema in schemas.items():
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema.get("description"), name


def test_operations_have_summaries_and_names_of_their_own() -> None:
    operations = [each for path in DOCUMENT["paths"].values() for each in path.values()]
    assert len(operations) == sum(len(each.methods) for each in OPERATIONS)
    assert len({each["operationId"] for each in operations}) == len(operations)
    assert all(each["summary"] for each in operations)


def test_public_operations_need_no_key() -> None:
    keyed = {
        path for path, methods in DOCUMENT["paths"].items() if any("security" in each for each in methods.values())
    }
    assert set(DOCUMENT["paths"]) - keyed == {"/health", "/live", "/ready", "/readyz", "/ping", "/metrics"}
    assert not any("security" in node for node in _nodes(openapi(with_keys=False)))


PARTS = {
    "/v1/chat/completions": {"image_url", "video_url", "input_audio"},
    "/v1/responses": {"input_image"},
    "/v1/messages": {"image"},
}


@pytest.mark.parametrize("path", PARTS)
def test_images_and_sound_are_shown_by_examples_that_servers_decode(path: str) -> None:
    operation = next(each for each in OPERATIONS if each.path == path)
    content = DOCUMENT["paths"][path]["post"]["requestBody"]["content"]["application/json"]
    text, *others = (each["value"] for each in content["examples"].values())
    bodies = [msgspec.convert(each, operation.request) for each in (text, *others)]
    assert all(bodies)
    conversations = [each.get("messages") or each["input"] for each in others]
    parts = [part for conversation in conversations for message in conversation for part in message["content"]]
    assert {part["type"] for part in parts} - {"text", "input_text"} == PARTS[path]
    for instance in (text, *others):
        _check(instance, operation.request.__name__)


def test_parts_say_what_they_may_be() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    fields = {"image_url", "video_url", "input_audio", "audio_url"}
    part = schemas["ContentPart"]["properties"]
    assert all(part[name]["description"].startswith(f"Of type {name}: ") for name in fields)
    assert all(name in part["type"]["description"] for name in fields)


def _check(instance: Any, name: str) -> None:
    schema = {"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]}
    jsonschema.validate(instance, schema, cls=jsonschema.Draft202012Validator)


CHAT = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
FULL = {"logprobs": True, "top_logprobs": 1, "prompt_logprobs": 1, "return_token_ids": True, "service_tier": "auto"}


@pytest.mark.parametrize(
    ("path", "body", "name"),
    [
        ("/v1/chat/completions", CHAT, "ChatCompletion"),
        ("/v1/chat/completions", {**CHAT, **FULL}, "ChatCompletion"),
        ("/v1/completions", {"prompt": "hello", "max_tokens": 2}, "Completion"),
        ("/v1/completions", {"prompt": "hello", "echo": True, "logprobs": 1, "prompt_logprobs": 0}, "Completion"),
        ("/v1/responses", {"input": "hello", "max_output_tokens": 2}, "ModelResponse"),
        ("/v1/responses", {"input": "hello", "include": [LOGPROBS], "max_output_tokens": 2}, "ModelResponse"),
        ("/v1/messages", CHAT, "MessagesAnswer"),
        ("/v1/messages/count_tokens", {"messages": CHAT["messages"]}, "TokenCount"),
        ("/v1/messages", {}, "MessagesError"),
        ("/tokenize", {"prompt": "hello", "return_token_strs": True}, "TokenizeResponse"),
        ("/detokenize", {"tokens": [5]}, "DetokenizeResponse"),
        ("/v1/completions", {}, "ErrorResponse"),
        ("/v1/models", None, "ModelList"),
        ("/v1/models/org/demo", None, "Model"),
        ("/load", None, "Load"),
    ],
)
def test_answers_are_as_documented(http: httpx.Client, path: str, body: Any, name: str) -> None:
    response = http.get(path) if body is None else http.post(path, json=body)
    _check(response.json(), name)


CONFIG = Path(__file__).with_name("schemathesis.toml")


def check_with_schemathesis(
    server: ServerProcess, mode: str, phases: str, max_examples: int, *, key: str | None = None
) -> None:
    """Made-up requests to every operation: no server error, answers as documented, and a server in good health."""
    # Not that every request of the right shape is accepted: some fields cannot be combined.
    checks = ["--checks", "all", "--exclude-checks", "positive_data_acceptance"]
    header = [] if key is None else ["--header", f"Authorization: Bearer {key}"]
    run = subprocess.run(
        [
            sys.executable, "-m", "schemathesis.cli", "--config-file", str(CONFIG), "run",
            f"{server.url}/openapi.json", *header, *checks,
            # These would start engines.
            "--exclude-path-regex", "^/scale", "--mode", mode, "--max-examples", str(max_examples), "--phases", phases,
            "--seed", "1", "--generation-database", "none", "--workers", "2", "--continue-on-failure",
        ],
        capture_output=True, text=True, timeout=1800, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr
    count = re.search(r"([\d,]+) generated", run.stdout)
    assert count is not None, run.stdout[-2000:]
    assert int(count[1].replace(",", "")) > 2 * len(OPERATIONS)
    tested = re.search(r"Tested: (\d+)", run.stdout)
    assert tested is not None
    # Those that take nothing cannot be given anything wrong.
    least = (
        26
        if mode == "negative"
        else sum(len(each.methods) for each in OPERATIONS if not each.path.startswith("/scale"))
    )
    assert int(tested[1]) >= least
    assert httpx.get(f"{server.url}/health", timeout=60).status_code == 200
    assert "Traceback" not in server.log


@pytest.fixture(scope="module")
def open_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The same server without a key."""
    with running(tmp_path_factory.mktemp("open") / "log", "demo", *FLAGS) as server:
        yield server


def test_schemathesis_finds_no_server_error(server: ServerProcess) -> None:
    check_with_schemathesis(server, "all", "examples,fuzzing", 5 if EVERY_CASE else 3, key=KEY)


# The test above asks with a key, and with right and wrong data.
@pytest.mark.exhaustive
def test_schemathesis_with_wrong_data_and_without_a_key(open_server: ServerProcess) -> None:
    # "coverage" would make bodies of 100 MB of what a list may hold.
    check_with_schemathesis(open_server, "negative", "fuzzing", 5)
