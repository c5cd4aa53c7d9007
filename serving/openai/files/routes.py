"""The routes of files."""

import os
from collections.abc import Iterator
from typing import IO
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from jaxllm.errors import RequestError, quoted
from jaxllm.serving.http.body.form import Form
from jaxllm.serving.http.errors import HttpError, not_enabled
from jaxllm.serving.http.responses import json_response
from jaxllm.serving.http.state import server_of
from jaxllm.serving.openai.files.paging import page
from jaxllm.serving.openai.files.store import FileStore
from jaxllm.serving.openai.files.upload import receive_upload
from jaxllm.serving.openai.protocol.files import DeletedFile, FileList, FileObject, FilesQuery
from jaxllm.serving.openai.stores import stores_of
from jaxllm.serving.tenancy.access import owner_of

_PURPOSE = "batch"
_SHORTEST = 3600
_MOST_LISTED = 10000
_CHUNK_BYTES = 2**16


async def create_file(request: Request) -> Response:
    """Take a file of requests for a batch, as a form with the fields file and purpose."""
    server_of(request).check_accepting()
    store = files_of(request)
    owner = owner_of(request).name
    file_id, reserved = store.new_id(owner), 0

    def reserve(num_bytes: int) -> None:
        nonlocal reserved
        store.reserve(owner, num_bytes)
        reserved += num_bytes

    try:
        form = await receive_upload(request, store.path(file_id), reserve)
        created = store.now()
        file = FileObject(
            id=file_id,
            bytes=store.path(file_id).stat().st_size,
            created_at=created,
            expires_at=created + _lifetime(form, store),
            filename=form.filename or "file",
            purpose="batch",
        )
        store.add(owner, file)
    except BaseException:
        store.forget(owner, file_id, reserved)
        raise
    store.release(owner, reserved - file.bytes)
    return json_response(file)


def _lifetime(form: Form, store: FileStore) -> int:
    """Seconds until the file expires. Raises `RequestError` for what is wrong with the form's fields."""
    purpose = form.fields.get("purpose")
    if purpose != _PURPOSE:
        raise RequestError(f"purpose={quoted(purpose)}: only files with purpose 'batch' are supported", "purpose")
    if form.fields.get("expires_after[anchor]", "created_at") != "created_at":
        raise RequestError("expires_after.anchor: must be 'created_at'", "expires_after.anchor")
    text = form.fields.get("expires_after[seconds]")
    return store.lifetime if text is None else checked_lifetime(text, store, "expires_after.seconds")


def checked_lifetime(text: str, store: FileStore, name: str) -> int:
    """A lifetime that a request asks for. Raises `RequestError`."""
    seconds = int(text) if text.isascii() and text.isdigit() and len(text) < 12 else 0
    longest = max(_SHORTEST, store.lifetime)
    if not _SHORTEST <= seconds <= longest:
        raise RequestError(f"{name}: must be {_SHORTEST} to {longest} (--stored-file-lifetime)", name)
    return seconds


async def list_files(request: Request) -> Response:
    """List the files."""
    store = files_of(request)
    query = server_of(request).bodies.read_query(request, FilesQuery)
    files = [file for file in store.files(owner_of(request).name) if query.purpose in (None, file.purpose)]
    if query.order != "asc":
        files.reverse()
    data, more = page(files, query.after, _MOST_LISTED if query.limit is None else query.limit, _MOST_LISTED)
    first, last = (data[0].id, data[-1].id) if data else (None, None)
    return json_response(FileList(data=data, first_id=first, last_id=last, has_more=more))


async def retrieve_file(request: Request) -> Response:
    """Tell about a file."""
    return json_response(find_file(request, request.path_params["file_id"], "file_id"))


async def retrieve_file_content(request: Request) -> Response:
    """Send the bytes of a file."""
    file = find_file(request, request.path_params["file_id"], "file_id")
    # Opened here, where nobody can delete it in between: once it is open, all of it can be read.
    try:
        opened = files_of(request).path(file.id).open("rb")
    except FileNotFoundError:
        raise _no_file(file.id, "file_id") from None
    headers = {
        "Content-Length": str(os.fstat(opened.fileno()).st_size),
        "Content-Disposition": f"attachment; filename*=utf-8''{quote(file.filename, safe='')}",
    }
    return StreamingResponse(_chunks(opened), headers=headers, media_type="application/octet-stream")


def _chunks(file: IO[bytes]) -> Iterator[bytes]:
    with file:
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk


async def delete_file(request: Request) -> Response:
    """Delete a file."""
    file = find_file(request, request.path_params["file_id"], "file_id")
    files_of(request).delete(file.id)
    return json_response(DeletedFile(id=file.id))


def files_of(request: Request) -> FileStore:
    """The files of this server. Raises an error of status 404 where it keeps none."""
    files = stores_of(request.app).files
    if files is None:
        raise not_enabled(request.url.path, "--max-stored-files above 0, and --api-server-count 1")
    return files


def find_file(request: Request, file_id: str, param: str) -> FileObject:
    """A file of the request's owner. Raises an error of status 404."""
    file = files_of(request).get(file_id, owner_of(request).name)
    if file is None:
        raise _no_file(file_id, param)
    return file


def _no_file(file_id: str, param: str) -> HttpError:
    message = f"there is no file {quoted(file_id)}: it was never uploaded, was deleted, or has expired"
    return HttpError(404, message, param=param, code="file_not_found")
