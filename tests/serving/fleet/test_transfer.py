"""The bodies that a router sends: as the server's own types read them."""

from typing import Any

import msgspec
import pytest

from jaxllm.requests.kv_transfer import read_transfer_params
from jaxllm.serving.fleet.transfer import CHAT, COMPLETIONS, PARAMETERS, decode_body, may_be_apart, prefill_body
from jaxllm.serving.openai.protocol.chat import ChatCompletionRequest
from jaxllm.serving.openai.protocol.completions import CompletionRequest

CHATTED: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Hi"}], "max_completion_tokens": 50, "max_tokens": 60, "stream": True,
    "stream_options": {"include_usage": True}, "n": 3, "min_tokens": 4, "logprobs": True, "top_logprobs": 2, "seed": 5,
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
}  # fmt: skip
COMPLETED: dict[str, Any] = {"prompt": [5, 6, 7], "best_of": 3, "n": 2, "logprobs": 2, "stream": True, "temperature": 0}


@pytest.mark.parametrize(("kind", "body"), [(ChatCompletionRequest, CHATTED), (CompletionRequest, COMPLETED)])
def test_a_prefill_is_one_whole_token_of_the_same_prompt(kind: Any, body: dict[str, Any]) -> None:
    sent = prefill_body(body)
    read = msgspec.convert(sent, kind)
    assert (read.max_tokens, bool(read.stream), read.n or 1) == (1, False, 1)
    assert getattr(read, "max_completion_tokens", None) in (None, 1)
    assert "stream_options" not in sent
    assert "min_tokens" not in sent
    for name in ("messages", "prompt", "tools", "temperature", "seed"):
        assert sent.get(name) == body.get(name)
    found = read_transfer_params(sent[PARAMETERS])
    assert found is not None
    assert (found.do_remote_decode, found.do_remote_prefill) == (True, False)
    # The request itself is left as it is.
    assert decode_body(body, {"do_remote_prefill": True}) == {**body, PARAMETERS: {"do_remote_prefill": True}}
    assert PARAMETERS not in body


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        (CHAT, CHATTED, True),
        (COMPLETIONS, COMPLETED, True),
        (COMPLETIONS, {"prompt": "text"}, True),
        (COMPLETIONS, {"prompt": ["one", "two"]}, False),
        (COMPLETIONS, {"prompt": [[1], [2]]}, False),
        (COMPLETIONS, {"prompt": []}, False),
        (COMPLETIONS, {"prompt": "text", "echo": True}, False),
        (COMPLETIONS, {"prompt": "text", "prompt_logprobs": 0}, False),
        (COMPLETIONS, {"prompt": "text", "echo": False, "use_beam_search": False}, True),
        (CHAT, {"messages": [], "use_beam_search": True}, False),
        (CHAT, {"messages": [], PARAMETERS: {"do_remote_decode": True}}, False),
        ("/v1/embeddings", {"input": "text"}, False),
    ],
)
def test_which_prompts_may_be_computed_elsewhere(path: str, body: dict[str, Any], *, expected: bool) -> None:
    assert may_be_apart(path, body) is expected
