"""The handlers of the pages."""

from functools import cache
from html import escape
from importlib.resources import files
from string import Template

import msgspec
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, Response

from jaxllm.serving.http.state import server_of
from jaxllm.serving.ui.files import show_page
from jaxllm.version import __version__

_HEADERS = {
    # Nothing from elsewhere, and in nobody's frame.
    "Content-Security-Policy": "default-src 'none'; style-src 'self' 'unsafe-inline'; "
    "script-src 'self' 'unsafe-inline'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Cache-Control": "no-cache",
}
_SWAGGER_UI = files("fastapi_offline") / "static"
"""Scripts and styles of Swagger UI; see fastapi-offline on PyPI."""


class About(msgspec.Struct, omit_defaults=True):
    """The server's description of itself at `/`; what not everybody may know is missing where it wants a key."""

    server: str
    api: str
    docs: str | None = None
    openapi: str | None = None
    version: str | None = None
    model: str | None = None


async def show_docs(_: Request) -> Response:
    """Show the OpenAPI document with Swagger UI. The page asks for a key where the document wants one."""
    return HTMLResponse(_read("docs.html"), headers=_HEADERS)


async def show_script(_: Request) -> Response:
    """The script of Swagger UI."""
    return _asset("swagger-ui-bundle.js")


async def show_style(_: Request) -> Response:
    """The style of Swagger UI."""
    return _asset("swagger-ui.css")


def _asset(name: str) -> Response:
    return FileResponse(str(_SWAGGER_UI / name), headers={"Cache-Control": "max-age=86400"})


DOCS = {"/docs": show_docs, "/docs/swagger-ui.js": show_script, "/docs/swagger-ui.css": show_style}
"""The page about the routes. It needs no key: what it shows of the server, it asks for with the reader's key."""


async def show_landing(request: Request) -> Response:
    """Say what this server is: as a page to browsers, else as JSON."""
    server = server_of(request)
    root = request.scope.get("root_path", "")
    about = About(server="jaxllm", api=f"{root}/v1")
    if not server.options.disable_docs:
        about.docs, about.openapi = f"{root}/docs", f"{root}/openapi.json"
    if not server.access.needs_key:
        about.version, about.model = __version__, server.model_names[0]
    if "text/html" not in request.headers.get("accept", ""):
        return Response(msgspec.json.encode(about), headers={"Vary": "Accept"}, media_type="application/json")
    if server.options.ui:
        return show_page(request)
    known = f"{about.model}, version {about.version}" if about.model else "This server requires an API key."
    links = {"API and its fields": about.docs, "Models": f"{root}/v1/models", "Health": f"{root}/health"}
    page = Template(_read("landing.html")).substitute(
        about=escape(known),
        base=escape(f"{str(request.base_url).rstrip('/')}/v1"),
        links=" &middot; ".join(f'<a href="{escape(path)}">{name}</a>' for name, path in links.items() if path),
    )
    return HTMLResponse(page, headers=_HEADERS | {"Vary": "Accept"})


@cache
def _read(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
