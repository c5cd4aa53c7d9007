"""Files, as OpenAI's interface has them."""

from typing import Annotated, Literal

from jaxllm.serving.http.body.base import Answer, Body
from jaxllm.serving.http.body.bounds import documented

Purpose = Literal["batch", "batch_output"]


class FileObject(Answer, kw_only=True):
    """A file."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int | None
    """When it is deleted."""
    filename: str
    purpose: Purpose
    """batch: requests that were uploaded. batch_output: answers of a batch."""
    status: Literal["processed"] = "processed"


class FileList(Answer, kw_only=True):
    """Files, in the order that was asked for."""

    object: Literal["list"] = "list"
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedFile(Answer, kw_only=True):
    """A file that is no more."""

    id: str
    object: Literal["file"] = "file"
    deleted: bool = True


class FilesQuery(Body, kw_only=True):
    """Query parameters of listing files."""

    after: str | None = None
    """Only the files after the one of this id."""
    limit: Annotated[int, documented(minimum=1, maximum=10000)] | None = None
    """Most files to return, from 1 to 10000; default 10000."""
    order: Literal["asc", "desc"] | None = None
    """desc, the default: the newest first."""
    purpose: str | None = None
    """Only files of this purpose."""
