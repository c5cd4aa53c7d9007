"""Keys: who may use the server, and who a request belongs to."""

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from jaxllm.errors import QuotaError
from jaxllm.serving.http.errors import wrong_key
from jaxllm.serving.http.operation import response_to
from jaxllm.serving.tenancy.access import Access, owner_by_address
from jaxllm.serving.tenancy.keys import Key


class ApiKeys:
    """Lets requests pass that bring a key, go to a public path, or come where no key is needed.

    It puts `owner` and `is_operator` into the scope (`jaxllm.serving.tenancy.access`).
    """

    def __init__(self, app: ASGIApp, access: Access, public_paths: frozenset[str]) -> None:
        self._app = app
        self._access = access
        self._public = public_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer with an error."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        scope["owner"] = owner_by_address(scope)
        scope["is_operator"] = not self._access.needs_key
        if self._access.needs_key and not self._is_public(scope):
            given = _keys_in(Headers(scope=scope))
            key = self._find(given)
            if key is None:
                await response_to(wrong_key(given=bool(given)), Request(scope))(scope, receive, send)
                return
            scope["owner"], scope["is_operator"] = key.owner, key.is_operator
            account = self._access.account(key.owner)
            if account is not None and scope.get("method") == "POST":
                try:
                    account.begin()
                except QuotaError as error:
                    await response_to(error, Request(scope))(scope, receive, send)
                    return
        await self._app(scope, receive, send)

    def _find(self, given: list[str]) -> Key | None:
        # Headers are read as Latin-1, whatever they are.
        found = [self._access.find(key.encode("latin-1")) for key in given]
        return next(filter(None, found), None)

    def _is_public(self, scope: Scope) -> bool:
        path: str = scope["path"]
        return path.removeprefix(scope.get("root_path", "")) in self._public


def _keys_in(headers: Headers) -> list[str]:
    """The keys that a request brings, in OpenAI's header or in Anthropic's."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    own = headers.get("x-api-key")
    return [key.strip()] * (scheme.lower() == "bearer") + ([] if own is None else [own.strip()])
