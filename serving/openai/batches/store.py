"""The batches of a server: they run alongside other requests, whoever comes and goes."""

import asyncio
import logging
import secrets
from collections.abc import Callable
from typing import Any

import msgspec
from fastapi.middleware.asyncexitstack import AsyncExitStackMiddleware
from starlette.applications import Starlette

from jaxllm.errors import CapacityError, JaxLLMError, QueueFullError
from jaxllm.requests.owners import Owner
from jaxllm.serving.http.errors import disk_problem
from jaxllm.serving.openai.batches.admission import Admission
from jaxllm.serving.openai.batches.client import RouteAnswer, post
from jaxllm.serving.openai.batches.job import BatchJob, is_ours
from jaxllm.serving.openai.files.private import write_whole
from jaxllm.serving.openai.files.store import FileStore
from jaxllm.serving.openai.protocol.batches import Batch, BatchProblem, BatchProblems, BatchRequestBody
from jaxllm.serving.openai.protocol.files import FileObject
from jaxllm.serving.tenancy.access import Access

logger = logging.getLogger(__name__)

_RECORD = ".batch.json"
MOST_REQUESTS = 50_000
"""Most requests of one batch, as with OpenAI."""


class StoredBatch(msgspec.Struct, kw_only=True):
    """A batch, whose it is, and the files of its answers while they are written."""

    owner: Owner
    batch: Batch
    answers: str
    failures: str
    lifetime: int
    """Seconds that these are kept."""
    written: int = 0
    """Bytes that are reserved for them."""


class BatchStore:
    """At most `max_batches`; the oldest that have ended go first. Belongs to one event loop."""

    def __init__(
        self, files: FileStore, access: Access, *, max_batches: int, num_slots: int, max_line_bytes: int
    ) -> None:
        """`num_slots` requests of all batches run at a time, within the quotas that `access` has."""
        self.max_batches = max_batches
        self._files, self._access = files, access
        self._num_slots = num_slots
        self._slots = asyncio.Semaphore(num_slots)
        self._max_line_bytes = max_line_bytes
        self._batches: dict[str, StoredBatch] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._stopping = False

    def resume(self, app: Starlette) -> None:
        """Find the batches of an earlier server in the files' folder, and go on with those that had not ended."""
        if not self._files.persistent:
            return
        for record in sorted(self._files.folder.glob(f"*{_RECORD}")):
            try:
                stored = msgspec.json.decode(record.read_bytes(), type=StoredBatch)
            except (OSError, msgspec.DecodeError):
                continue
            self._batches[stored.batch.id] = stored
        running = [stored for stored in self._batches.values() if stored.batch.runs]
        self._files.sweep({name for stored in running for name in (stored.answers, stored.failures)})
        for stored in running:
            self._files.reopen(stored.owner.name, stored.written)
            self._save_if_possible(stored)
            self._start(stored, app)

    def create(
        self, body: BatchRequestBody, source: FileObject, owner: Owner, *, window: int, lifetime: int, app: Starlette
    ) -> Batch:
        """Begin a batch over the file `source`, answered by the routes of `app`. Raises `CapacityError`.

        It may run for `window` seconds; files of its answers are kept for `lifetime` seconds.
        """
        self._make_room()
        created = self._files.now()
        batch = Batch(
            id=f"batch_{secrets.token_hex(12)}",
            endpoint=body.endpoint,
            input_file_id=source.id,
            completion_window=body.completion_window,
            status="validating",
            created_at=created,
            expires_at=created + window,
            metadata=body.metadata,
        )
        answers = self._files.new_id(owner.name)
        try:
            failures = self._files.new_id(owner.name)
        except CapacityError:
            self._files.forget(owner.name, answers, 0)
            raise
        stored = StoredBatch(owner=owner, batch=batch, answers=answers, failures=failures, lifetime=lifetime)
        try:
            self._save(stored)
        except OSError:
            for name in (answers, failures):
                self._files.forget(owner.name, name, 0)
            raise
        self._batches[batch.id] = stored
        self._start(stored, app)
        return batch

    def _make_room(self) -> None:
        ended = [name for name, stored in self._batches.items() if not stored.batch.runs]
        while len(self._batches) >= self.max_batches and ended:
            name = ended.pop(0)
            del self._batches[name]
            self._record(name).unlink(missing_ok=True)
        if len(self._batches) >= self.max_batches:
            raise QueueFullError(
                f"{self.max_batches} batches are already running (--max-batches); cancel some, or wait", 60.0
            )

    def get(self, batch_id: str, owner: Owner) -> Batch | None:
        """A batch of this owner; None if it is not there, or another's."""
        stored = self._batches.get(batch_id)
        return stored.batch if stored is not None and stored.owner.name == owner.name else None

    def batches(self, owner: Owner) -> list[Batch]:
        """All batches of this owner, the newest first."""
        return [stored.batch for stored in self._batches.values() if stored.owner.name == owner.name][::-1]

    def cancel(self, batch: Batch) -> None:
        """End a batch that runs; answers that are there stay."""
        if batch.runs and batch.status != "cancelling":
            batch.status, batch.cancelling_at = "cancelling", self._files.now()
            self._tasks[batch.id].cancel()

    async def stop(self) -> None:
        """End all; where files are kept, another server goes on with them."""
        self._stopping = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # Running

    def _start(self, stored: StoredBatch, app: Starlette) -> None:
        batch = stored.batch

        # FastAPI's routes want what its outermost middleware puts into the scope.
        routes = AsyncExitStackMiddleware(app.router)

        async def send(path: str, body: bytes, request_id: str) -> RouteAnswer:
            return await post(routes, path, body, request_id, app=app, owner=stored.owner)

        def reserve(num_bytes: int) -> None:
            self._files.reserve(stored.owner.name, num_bytes)
            stored.written += num_bytes

        path: Callable[[str], Any] = self._files.path
        job = BatchJob(
            batch,
            path(batch.input_file_id),
            path(stored.answers),
            path(stored.failures),
            post=send,
            # A request passes no middleware, where those of clients are counted.
            admission=Admission(self._slots, lambda: self._access.account(stored.owner)),
            reserve=reserve,
            most_requests=MOST_REQUESTS,
            most_bytes=self._max_line_bytes,
        )
        batch.in_progress_at = batch.in_progress_at or self._files.now()
        task = asyncio.get_running_loop().create_task(self._run(stored, job))
        self._tasks[batch.id] = task
        task.add_done_callback(lambda _: self._tasks.pop(batch.id, None))

    async def _run(self, stored: StoredBatch, job: BatchJob) -> None:
        batch = stored.batch
        try:
            async with asyncio.timeout(max(0, batch.expires_at - self._files.now())):
                await job.run(self._num_slots)
            self._finish(stored, "failed" if batch.errors is not None else "completed")
        except TimeoutError:
            self._finish(stored, "expired")
        except asyncio.CancelledError:
            if self._stopping and self._files.persistent:
                self._save_if_possible(stored)
                return
            self._finish(stored, "cancelled")
        except (JaxLLMError, OSError, BaseExceptionGroup) as error:
            self._fail(stored, error)

    def _fail(self, stored: StoredBatch, error: BaseException) -> None:
        first = error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error
        disk = disk_problem(first)
        if disk is not None:
            logger.warning("%s failed: %s", stored.batch.id, disk)
        elif not is_ours(error):
            logger.error("internal error in %s", stored.batch.id, exc_info=error)
        message = str(first) if is_ours(error) else "internal error; the server's log has the details"
        message = disk or message
        stored.batch.errors = BatchProblems(data=[BatchProblem(code="batch_failed", message=message)])
        self._finish(stored, "failed")

    def _finish(self, stored: StoredBatch, status: Any) -> None:
        """Make files of the answers, and say how it ended."""
        batch, now = stored.batch, self._files.now()
        batch.finalizing_at = now if status == "completed" else None
        sizes = [self._size(name) for name in (stored.answers, stored.failures)]
        # What was written is counted by the byte from here on.
        self._files.release(stored.owner.name, stored.written - sum(sizes))
        stored.written = 0
        batch.output_file_id = self._keep(stored, stored.answers, sizes[0], "output")
        batch.error_file_id = self._keep(stored, stored.failures, sizes[1], "error")
        batch.status = status
        setattr(batch, f"{status}_at", now)
        self._save_if_possible(stored)

    def _size(self, name: str) -> int:
        path = self._files.path(name)
        return path.stat().st_size if path.exists() else 0

    def _keep(self, stored: StoredBatch, name: str, size: int, kind: str) -> str | None:
        """The file of this name as one of the owner's; None, and it is deleted: it is empty."""
        if size == 0:
            self._files.forget(stored.owner.name, name, 0)
            return None
        created = self._files.now()
        file = FileObject(
            id=name,
            bytes=size,
            created_at=created,
            expires_at=created + stored.lifetime,
            filename=f"{stored.batch.id}_{kind}.jsonl",
            purpose="batch_output",
        )
        try:
            self._files.add(stored.owner.name, file)
        except OSError as error:
            logger.warning(
                "cannot write the record of file %s, which will be lost when the server exits: %s", name, error.strerror
            )
            self._files.add(stored.owner.name, file, lasting=False)
        return name

    def _save(self, stored: StoredBatch) -> None:
        if self._files.persistent:
            write_whole(self._record(stored.batch.id), msgspec.json.encode(stored))

    def _save_if_possible(self, stored: StoredBatch) -> None:
        """Save a batch, which runs or has ended whether or not the disk takes that."""
        try:
            self._save(stored)
        except OSError as error:
            logger.warning(
                "cannot write the results of %s, which will be lost when the server exits: %s",
                stored.batch.id,
                error.strerror,
            )

    def _record(self, batch_id: str) -> Any:
        return self._files.folder / f"{batch_id}{_RECORD}"
