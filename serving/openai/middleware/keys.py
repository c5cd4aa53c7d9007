"""Keys: who may use the server."""

import hashlib
import hmac
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from jaxllm.serving.openai.errors import response_to, wrong_key


class ApiKeys:
    """Lets requests pass that bring one of several keys, or go to a public path.

    Every key is compared, in a time that depends on neither key.
    """

    def __init__(self, app: ASGIApp, keys: Sequence[str], public_paths: frozenset[str]) -> None:
        self._app = app
        self._keys = [_digest(key.encode(errors="surrogateescape")) for key in keys]
        self._public = public_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer with an error."""
        if scope["type"] == "lifespan" or self._is_public(scope):
            await self._app(scope, receive, send)
            return
        keys = _keys_in(Headers(scope=scope))
        if any(map(self._knows, keys)):
            await self._app(scope, receive, send)
            return
        await response_to(wrong_key(given=bool(keys)), Request(scope))(scope, receive, send)

    def _knows(self, key: str) -> bool:
        # Headers are read as Latin-1, whatever they are.
        digest = _digest(key.encode("latin-1"))
        return any([hmac.compare_digest(digest, known) for known in self._keys])  # noqa: C419  (all are compared)

    def _is_public(self, scope: Scope) -> bool:
        path: str = scope["path"]
        return path.removeprefix(scope.get("root_path", "")) in self._public


def _keys_in(headers: Headers) -> list[str]:
    """The keys that a request brings, in OpenAI's header or in Anthropic's."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    own = headers.get("x-api-key")
    return [key.strip()] * (scheme.lower() == "bearer") + ([] if own is None else [own.strip()])


def _digest(key: bytes) -> bytes:
    """Of equal length for all keys."""
    return hashlib.sha256(key).digest()
