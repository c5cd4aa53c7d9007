"""One line of the log for every request, when it is over: what was asked, how it ended, how long it took."""

import logging
import time
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jaxllm.serving.text.input_processor import TextRequest

logger = logging.getLogger(__name__)

ENGINE_REQUESTS: Final = "jaxllm.engine_requests"
"""In the scope: the requests to the engine that were made for this one."""
TRACE_ID: Final = "jaxllm.trace_id"
"""In the scope: the trace that the request is part of, if it is traced."""

QUIET_PATHS: Final = frozenset(("/health", "/live", "/ready", "/readyz", "/ping", "/metrics"))
"""The paths that probes ask for all the time."""

_LONGEST_REASON = 500
_LEFT = 499
"""The status of requests whose client left before the answer, as nginx has it."""


class AccessLog:
    """Logs requests with fields, which are members of the JSON of `--log-format json`.

    `method`, `path`, `status`, `duration_seconds`, `client`; of requests that reached the engine `prompt_tokens`,
    `completion_tokens`, `finish_reason` and `time_to_first_token_seconds`; of rejected ones `reason`; of traced ones
    `trace_id`.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] != "http" or scope["path"].removeprefix(scope.get("root_path", "")) in QUIET_PATHS:
            await self._app(scope, receive, send)
            return
        began, status, refusal = time.monotonic(), 0, b""

        async def watch(message: Message) -> None:
            nonlocal status, refusal
            if message["type"] == "http.response.start":
                status = message["status"]
            elif status >= 400 and not refusal:
                refusal = message.get("body", b"")
            await send(message)

        failed = False
        try:
            await self._app(scope, receive, watch)
        except Exception:
            failed = True
            raise
        finally:
            _write(scope, status or (500 if failed else _LEFT), time.monotonic() - began, refusal)


def _write(scope: Scope, status: int, seconds: float, refusal: bytes) -> None:
    client = scope.get("client")
    fields: dict[str, Any] = {
        "method": scope["method"],
        "path": scope["path"],
        "status": status,
        "duration_seconds": round(seconds, 6),
        "client": client[0] if client else None,
        **_tokens(scope.get(ENGINE_REQUESTS, ())),
    }
    parts = [f'{fields["client"] or "-"} "{scope["method"]} {_quoted(scope["path"])}" {status} in {seconds:.3f} s']
    if "completion_tokens" in fields:
        parts.append(f"{fields['prompt_tokens']} prompt tokens, {fields['completion_tokens']} tokens")
    reason = _reason(refusal) if refusal else None
    if reason is not None:
        fields["reason"] = reason
        parts.append(reason)
    if TRACE_ID in scope:
        fields["trace_id"] = scope[TRACE_ID]
    logger.info("%s", "; ".join(parts), extra={"request_id": scope.get("request_id"), **fields})


def _quoted(path: str) -> str:
    """A path that cannot end the quotation marks around it; formatters escape what is no visible character."""
    return path.replace("\\", r"\\").replace('"', r"\"")


def _tokens(requests: Sequence[TextRequest]) -> dict[str, Any]:
    """The engine's work for a request."""
    if not requests:
        return {}
    fields: dict[str, Any] = {
        "prompt_tokens": sum(len(each.prompt_token_ids) for each in requests),
        "completion_tokens": sum(each.progress.num_tokens for each in requests),
    }
    reasons = list(dict.fromkeys(reason for each in requests for reason in each.progress.finish_reasons))
    if reasons:
        fields["finish_reason"] = reasons[0] if len(reasons) == 1 else reasons
    first = [each.progress.first_token_seconds for each in requests]
    known = [seconds for seconds in first if seconds is not None]
    if known:
        fields["time_to_first_token_seconds"] = round(min(known), 6)
    return fields


def _reason(body: bytes) -> str | None:
    """The message of an error in any of the forms that ours have."""
    try:
        answer = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return None
    error = answer.get("error", answer) if isinstance(answer, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    return str(message)[:_LONGEST_REASON] if message else None
