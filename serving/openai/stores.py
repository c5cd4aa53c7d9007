"""The stores of the OpenAI interface between requests: responses, files and batches."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from starlette.applications import Starlette

from jaxllm.serving.http.limits import body_size
from jaxllm.serving.http.state import ServerState
from jaxllm.serving.openai.batches.store import BatchStore
from jaxllm.serving.openai.files.store import FileStore
from jaxllm.serving.openai.responses.database import ResponseDatabase
from jaxllm.serving.openai.responses.restarted import Create, Restarted
from jaxllm.serving.openai.responses.store import ResponseStore
from jaxllm.serving.options.server import ServerOptions


@dataclass(kw_only=True)
class Stores:
    """The stores of one server, found as `app.state.stores`; files and batches are None where no files are kept."""

    responses: ResponseStore
    database: ResponseDatabase | None = None
    """Where responses are kept over a restart."""
    files: FileStore | None = None
    batches: BatchStore | None = None
    _restarted: Restarted | None = None

    @classmethod
    def of(cls, server: ServerState) -> Self:
        """The stores that the operator has chosen. Raises `ConfigError` for a folder that cannot be used."""
        options = server.options
        # Each of several processes would know only its own, and the next request may reach another.
        alone = options.api_server_count == 1
        database = None if options.store_dir is None else ResponseDatabase(Path(options.store_dir))
        responses = ResponseStore(
            options.max_stored_responses if alone else 0,
            options.max_stored_response_bytes,
            database,
            () if database is None else database.load(),
        )
        if options.max_stored_files == 0 or not alone:
            return cls(responses=responses, database=database)
        files = FileStore(
            files_folder(options),
            max_files=options.max_stored_files,
            max_bytes=options.max_stored_file_bytes,
            lifetime=options.stored_file_lifetime,
            share=options.max_stored_file_share,
        )
        batches = BatchStore(
            files,
            server.access,
            max_batches=options.max_batches,
            # Half of what runs at once is left to those who wait for their answers.
            num_slots=max(1, server.llm.info.max_num_seqs // 2),
            max_line_bytes=body_size(options, server.llm.info),
        )
        return cls(responses=responses, database=database, files=files, batches=batches)

    async def written(self, *, strictly: bool = False) -> None:
        """Wait until what was stored is on the disk, where it is kept there.

        `strictly`: raises `OSError` if the disk does not take it. Else the log says so, and memory has it.
        """
        if self.database is not None:
            with suppress(*(() if strictly else (OSError,))):
                await self.database.written()

    def resume(self, app: Starlette, create: Create) -> None:
        """Go on with what an earlier server has begun: batches by the routes of `app`, responses by `create`."""
        self._restarted = Restarted(app, self.responses, create)
        if self.batches is not None:
            self.batches.resume(app)

    async def stop_batches(self) -> None:
        """End the batches; where files are kept, another server goes on with them."""
        if self.batches is not None:
            await self.batches.stop()

    def hand_over(self) -> None:
        """What happens to responses from now on is not written: another server goes on with those that run."""
        if self.database is not None:
            self.database.close()

    async def close(self) -> None:
        """End the batches, and let go of the files."""
        await self.stop_batches()
        if self._restarted is not None:
            await self._restarted.stop()
        self.hand_over()
        if self.files is not None:
            self.files.close()


def files_folder(options: ServerOptions) -> str | None:
    """Where files and batches are kept; None: in a temporary folder."""
    if options.files_dir is None and options.store_dir is not None:
        return str(Path(options.store_dir) / "files")
    return options.files_dir


def stores_of(app: Starlette) -> Stores:
    """The stores of the server whose application this is."""
    stores: Stores = app.state.stores
    return stores
