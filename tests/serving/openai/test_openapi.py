"""The OpenAPI document against its specification, the server's answers, and thousands of made-up requests."""

import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema
import pytest

from jaxllm.serving.openai.openapi import openapi
from jaxllm.serving.openai.protocol.responses import LOGPROBS
from jaxllm.serving.openai.routes import OPERATIONS
from tests.serving.openai.conftest import KEY
from tests.serving.server_process import ServerProcess

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
    assert set(DOCUMENT["paths"]) - keyed == {"/health", "/ready", "/ping", "/metrics"}
    assert not any("security" in node for node in _nodes(openapi(with_keys=False)))


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


@pytest.mark.slow
def test_schemathesis_finds_no_server_error(server: ServerProcess) -> None:
    # Not that every request of the right shape is accepted: some fields do not go together.
    checks = ["--checks", "all", "--exclude-checks", "positive_data_acceptance"]
    run = subprocess.run(
        [
            sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/openapi.json",
            "--header", f"Authorization: Bearer {KEY}", *checks, "--max-examples", "5",
            "--phases", "examples,coverage,fuzzing", "--seed", "1", "--generation-database", "none", "--workers", "2",
            "--exclude-path", "/reset_prefix_cache",
        ],
        capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr
    assert re.search(r"\d{3,} generated", run.stdout), run.stdout[-2000:]
