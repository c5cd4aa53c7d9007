"""The routes of batches."""

import re

from starlette.requests import Request
from starlette.responses import Response

from jaxllm.errors import RequestError, nearest, quoted
from jaxllm.serving.http.errors import HttpError
from jaxllm.serving.http.operation import batch_urls, operations_of
from jaxllm.serving.http.responses import json_response
from jaxllm.serving.http.state import server_of
from jaxllm.serving.openai.batches.store import BatchStore
from jaxllm.serving.openai.files.paging import page
from jaxllm.serving.openai.files.routes import checked_lifetime, files_of, find_file
from jaxllm.serving.openai.protocol.batches import Batch, BatchesQuery, BatchList, BatchRequestBody
from jaxllm.serving.openai.stores import stores_of
from jaxllm.serving.tenancy.access import owner_of

_WINDOW = re.compile(r"([1-9]\d{0,3})([hd])")
_SECONDS = {"h": 3600, "d": 86400}
_LONGEST = 30 * 86400
_MOST_METADATA = (16, 64, 512)
_DEFAULT_LISTED, _MOST_LISTED = 20, 100


async def create_batch(request: Request) -> Response:
    """Answer a file of requests, while nobody waits."""
    server = server_of(request)
    server.check_accepting()
    body = await server.bodies.read(request, BatchRequestBody)
    store = batches_of(request)
    source = find_file(request, body.input_file_id, "input_file_id")
    if source.purpose != "batch":
        raise RequestError(
            f"input_file_id={quoted(body.input_file_id)}: has the purpose {quoted(source.purpose)}, not 'batch'",
            "input_file_id",
        )
    urls = batch_urls(operations_of(request.app))
    if body.endpoint not in urls:
        raise RequestError(
            f"endpoint={quoted(body.endpoint)}: must be one of {', '.join(urls)}{nearest(body.endpoint, urls)}",
            "endpoint",
        )
    _check_metadata(body.metadata or {})
    files = files_of(request)
    expiry = body.output_expires_after
    lifetime = (
        files.lifetime
        if expiry is None
        else checked_lifetime(str(expiry.seconds), files, "output_expires_after.seconds")
    )
    window = _window(body.completion_window)
    batch = store.create(body, source, owner_of(request), window=window, lifetime=lifetime, app=request.app)
    return json_response(batch)


def _window(text: str) -> int:
    found = _WINDOW.fullmatch(text)
    seconds = 0 if found is None else int(found[1]) * _SECONDS[found[2]]
    if not 0 < seconds <= _LONGEST:
        raise RequestError(
            f"completion_window={quoted(text)}: must be a number of hours or days, such as 24h, of at most 30d",
            "completion_window",
        )
    return seconds


def _check_metadata(metadata: dict[str, str]) -> None:
    pairs, name_length, value_length = _MOST_METADATA
    if len(metadata) > pairs or any(len(k) > name_length or len(v) > value_length for k, v in metadata.items()):
        raise RequestError(
            f"metadata: at most {pairs} pairs are allowed, with names of at most {name_length} and values of at most "
            f"{value_length} characters",
            "metadata",
        )


async def list_batches(request: Request) -> Response:
    """List the batches, the newest first."""
    query = server_of(request).bodies.read_query(request, BatchesQuery)
    batches = batches_of(request).batches(owner_of(request))
    data, more = page(batches, query.after, _DEFAULT_LISTED if query.limit is None else query.limit, _MOST_LISTED)
    first, last = (data[0].id, data[-1].id) if data else (None, None)
    return json_response(BatchList(data=data, first_id=first, last_id=last, has_more=more))


async def retrieve_batch(request: Request) -> Response:
    """Tell how far a batch is."""
    return json_response(_find(request))


async def cancel_batch(request: Request) -> Response:
    """End a batch that runs; answers that are there stay."""
    batch = _find(request)
    if not batch.runs:
        raise RequestError(f"{batch.id} has already ended: its status is {batch.status}", "batch_id")
    batches_of(request).cancel(batch)
    return json_response(batch)


def batches_of(request: Request) -> BatchStore:
    """The batches of this server. Raises an error of status 404 where it keeps no files."""
    files_of(request)
    batches = stores_of(request.app).batches
    assert batches is not None
    return batches


def _find(request: Request) -> Batch:
    batch_id = request.path_params["batch_id"]
    batch = batches_of(request).get(batch_id, owner_of(request))
    if batch is None:
        message = (
            f"there is no batch {quoted(batch_id)}: it never existed, or was deleted for newer ones (--max-batches)"
        )
        raise HttpError(404, message, param="batch_id", code="batch_not_found")
    return batch
