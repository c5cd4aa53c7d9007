"""Uploads: a form with a file, written to disk as it comes."""

from collections.abc import Callable
from pathlib import Path

from starlette.requests import Request

from jaxllm.serving.http.body.form import Form, receive_form
from jaxllm.serving.http.connection.connections import upload_of
from jaxllm.serving.openai.files.private import open_private


async def receive_upload(request: Request, path: Path, reserve: Callable[[int], None]) -> Form:
    """Read a form whose field `file` goes to `path`; `reserve` is asked before bytes are written.

    Nothing is held in memory but what came last. Raises `RequestError`, `HttpError`, and what `reserve` raises; what
    was written by then is the caller's to delete.
    """
    held = upload_of(request.scope)
    with open_private(path, "wb") as file:
        return await receive_form(request, file, "the fields file and purpose", take=reserve, taken=held.release)
