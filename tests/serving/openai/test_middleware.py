"""Middleware around a small application, in this process."""

import sys
from collections.abc import AsyncIterator, Sequence
from types import ModuleType

import httpx
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from jaxllm.errors import ConfigError
from jaxllm.serving.http.errors import HttpError
from jaxllm.serving.http.middleware.body_size import BodyLimit
from jaxllm.serving.http.middleware.custom import load_middleware, load_router
from jaxllm.serving.http.middleware.keys import ApiKeys
from jaxllm.serving.http.middleware.request_ids import RequestIds
from jaxllm.serving.http.operation import guarded, handle
from jaxllm.serving.tenancy.access import Access


async def echo(request: Request) -> Response:
    return PlainTextResponse(f"{len(await request.body())} {request.scope.get('request_id')}")


async def fail(_: Request) -> Response:
    raise KeyError("secret detail")


async def ask(
    middleware: Sequence[Middleware], path: str = "/echo", *, root_path: str = "", **request: object
) -> httpx.Response:
    routes = [Route(each, guarded(echo), methods=["GET", "POST"]) for each in ("/echo", "/health")]
    app = Starlette(
        routes=[*routes, Route("/fail", guarded(fail))],
        middleware=middleware,
        exception_handlers={HttpError: handle, Exception: handle},
    )
    transport = httpx.ASGITransport(app, root_path=root_path, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
        return await client.request("POST" if "content" in request else "GET", root_path + path, **request)  # type: ignore[arg-type]


KEYS = Middleware(ApiKeys, access=Access(["one", "two"]), public_paths=frozenset({"/health"}))


@pytest.mark.parametrize(
    ("path", "key", "status"),
    [
        ("/echo", "one", 200),
        ("/echo", "two", 200),
        ("/echo", "three", 401),
        ("/echo", None, 401),
        ("/health", None, 200),
        ("/health/", None, 401),
        ("/healthy", None, 401),
        ("//health", None, 401),
    ],
)
@pytest.mark.parametrize("root_path", ["", "/llm"])
async def test_keys(path: str, key: str | None, status: int, root_path: str) -> None:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    assert (await ask([KEYS], path, root_path=root_path, headers=headers)).status_code == status


async def test_a_body_of_the_largest_size() -> None:
    limit = Middleware(BodyLimit, limit=10, uploads={})

    async def pieces(count: int) -> AsyncIterator[bytes]:
        for _ in range(count):
            yield b"12345"

    assert (await ask([limit], content=b"x" * 10)).text.startswith("10")
    assert (await ask([limit], content=pieces(2))).text.startswith("10")
    for content in (b"x" * 11, pieces(3)):
        response = await ask([limit], content=content)
        assert response.status_code == 413
        assert response.json()["error"]["code"] == "request_too_large"


async def test_request_ids_are_kept_or_made() -> None:
    given = await ask([Middleware(RequestIds)], headers={"X-Request-Id": "mine"})
    assert (given.text, given.headers["x-request-id"]) == ("0 mine", "mine")
    made = await ask([Middleware(RequestIds, always=True)], headers={"X-Request-Id": "a\tb"})
    assert made.text == f"0 {made.headers['x-request-id']}"
    assert len(made.headers["x-request-id"]) == 32


async def test_what_nobody_expected(caplog: pytest.LogCaptureFixture) -> None:
    response = await ask([Middleware(RequestIds)], "/fail", headers={"X-Request-Id": "mine"})
    assert response.status_code == 500
    assert "secret" not in response.text
    assert "mine" in response.json()["error"]["message"]
    assert "secret detail" in caplog.text


class Upper:
    """A class around the application."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["request_id"] = "FROM A CLASS"
        await self.app(scope, receive, send)


def around(app: ASGIApp) -> ASGIApp:
    """A function around the application."""
    return Upper(app)


async def teapot(request: Request, call_next: object) -> Response:
    """A function of requests, as vLLM takes it."""
    return PlainTextResponse("tea", 418)


async def broken(request: Request, call_next: object) -> Response:
    raise KeyError("secret detail")


@pytest.fixture
def operator_module(monkeypatch: pytest.MonkeyPatch) -> str:
    module = ModuleType("operator_module")
    module.__dict__.update(Upper=Upper, around=around, teapot=teapot, broken=broken, number=3)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module.__name__


async def test_middleware_of_the_operator(operator_module: str) -> None:
    for separator in (":", "."):
        for name in ("Upper", "around"):
            assert (await ask([load_middleware(f"{operator_module}{separator}{name}")])).text == "0 FROM A CLASS"
        assert (await ask([load_middleware(f"{operator_module}{separator}teapot")])).status_code == 418


async def test_an_error_in_the_operators_middleware(operator_module: str) -> None:
    response = await ask([load_middleware(f"{operator_module}:broken")])
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "internal_error"
    assert "secret" not in response.text


WRONG = ["no_such_module:x", "no_such_module.x", "operator_module:absent", "operator_module:number"]


@pytest.mark.parametrize("path", WRONG)
def test_middleware_that_is_none(operator_module: str, path: str) -> None:
    assert operator_module
    with pytest.raises(ConfigError, match=path):
        load_middleware(path)


def test_a_router_that_is_none(operator_module: str) -> None:
    with pytest.raises(ConfigError, match="not a FastAPI router"):
        load_router(f"{operator_module}.number")
