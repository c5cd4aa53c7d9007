"""The bodies of a request whose prompt one server computes and another one decodes, as NIXL's proxies have them."""

from collections.abc import Mapping
from typing import Any

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
PARAMETERS = "kv_transfer_params"
_ASK: dict[str, Any] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
_OF_OUTPUT = (
    *("stream_options", "min_tokens", "best_of", "logprobs", "top_logprobs", "n", "prediction"),
    *("return_token_ids", "return_tokens_as_token_ids"),
)
"""Fields that only say what comes after the prompt; some do not allow an output of one token."""
_OF_PROMPT = ("echo", "prompt_logprobs", "prompt_embeds", "use_beam_search", "suffix")
"""Fields whose answer needs a prompt that is computed where the request is decoded."""


def may_be_apart(path: str, body: Mapping[str, Any]) -> bool:
    """Whether the prompt of a request may be computed by another server."""
    if path not in (CHAT, COMPLETIONS) or body.get(PARAMETERS) is not None:
        return False
    # 0 is a number of alternatives, and not the same as False.
    if any(body.get(name) is not None and body.get(name) is not False for name in _OF_PROMPT):
        return False
    prompt = body.get("prompt")
    # Several prompts are several requests, which have parameters of their own.
    return path == CHAT or isinstance(prompt, str) or (isinstance(prompt, list) and _are_ids(prompt))


def _are_ids(prompt: list[Any]) -> bool:
    return bool(prompt) and all(type(token) is int for token in prompt)


def prefill_body(body: Mapping[str, Any]) -> dict[str, Any]:
    """The request for the server that computes the prompt: one token, whole, and the pages are kept."""
    asked = {name: value for name, value in body.items() if name not in _OF_OUTPUT}
    asked |= {"stream": False, "max_tokens": 1, PARAMETERS: dict(_ASK)}
    if "max_completion_tokens" in body:
        asked["max_completion_tokens"] = 1
    return asked


def decode_body(body: Mapping[str, Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The request for the server that decodes, with what the other one has answered."""
    return {**body, PARAMETERS: dict(parameters)}


def release_body(body: Mapping[str, Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """A completion after which pages are not kept any more: it names them, and has too few tokens to need any."""
    model = {} if body.get("model") is None else {"model": body["model"]}
    return {**model, "prompt": "a", "max_tokens": 1, PARAMETERS: dict(parameters)}
