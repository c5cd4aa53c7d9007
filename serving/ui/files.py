"""The files of the page: read once, served with a digest by which browsers know that they have them."""

import hashlib
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from importlib.resources.abc import Traversable
from string import Template

from starlette.requests import Request
from starlette.responses import Response

PREFIX = "/ui/"
_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".txt": "text/plain"}
_INDEX = "index.html"
_HEADERS = {
    # Scripts and styles are files of this server, and nothing else runs: not what stands in the page, nor in text.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    # Browsers ask whether a file is still the same: one that is costs them headers alone.
    "Cache-Control": "no-cache",
}


@dataclass(frozen=True)
class Asset:
    """A file of the page."""

    content: bytes
    media_type: str
    etag: str


@cache
def assets() -> dict[str, Asset]:
    """The files that the page loads, by their path."""
    return {path: _asset(path, file) for path, file in _walk(files(__package__) / "static", PREFIX)}


def _walk(folder: Traversable, prefix: str) -> list[tuple[str, Traversable]]:
    found = []
    for each in folder.iterdir():
        if each.is_dir():
            found += _walk(each, f"{prefix}{each.name}/")
        elif any(map(each.name.endswith, _TYPES)):
            found.append((f"{prefix}{each.name}", each))
    return sorted(found, key=lambda pair: pair[0])


def _asset(path: str, file: Traversable) -> Asset:
    content = file.read_bytes()
    return Asset(content, _TYPES["." + path.rpartition(".")[2]], _digest(content))


def _digest(content: bytes) -> str:
    return f'"{hashlib.sha256(content).hexdigest()[:32]}"'


async def show_asset(request: Request) -> Response:
    """A file of the page, or status 304 where the browser has it."""
    path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
    asset = assets()[path]
    return _answer(request, asset.content, asset.media_type, asset.etag, {})


def show_page(request: Request) -> Response:
    """The page itself."""
    root = escape(request.scope.get("root_path", "").rstrip("/"))
    content = Template(_index()).substitute(ui=f"{root}{PREFIX}").encode()
    return _answer(request, content, "text/html", _digest(content), {"Vary": "Accept"})


@cache
def _index() -> str:
    return (files(__package__) / "static" / _INDEX).read_text(encoding="utf-8")


def _answer(request: Request, content: bytes, media_type: str, etag: str, more: dict[str, str]) -> Response:
    headers = {**_HEADERS, **more, "ETag": etag}
    known = request.headers.get("if-none-match", "")
    if any(each.strip().removeprefix("W/") == etag for each in known.split(",")):
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers, media_type=media_type)
