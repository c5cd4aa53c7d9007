"""The stores of the OpenAI interface between requests: responses, files and batches."""

from dataclasses import dataclass
from typing import Self

from starlette.applications import Starlette

from jaxllm.serving.http.limits import body_size
from jaxllm.serving.http.state import ServerState
from jaxllm.serving.openai.batches.store import BatchStore
from jaxllm.serving.openai.files.store import FileStore
from jaxllm.serving.openai.responses.store import ResponseStore


@dataclass(frozen=True, kw_only=True)
class Stores:
    """The stores of one server, found as `app.state.stores`; files and batches are None where no files are kept."""

    responses: ResponseStore
    files: FileStore | None = None
    batches: BatchStore | None = None

    @classmethod
    def of(cls, server: ServerState) -> Self:
        """The stores that the operator has chosen. Raises `ConfigError` for a folder that cannot be used."""
        options = server.options
        # Each of several processes would know only its own, and the next request may reach another.
        alone = options.api_server_count == 1
        responses = ResponseStore(options.max_stored_responses if alone else 0, options.max_stored_response_bytes)
        if options.max_stored_files == 0 or not alone:
            return cls(responses=responses)
        files = FileStore(
            options.files_dir,
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
        return cls(responses=responses, files=files, batches=batches)

    def resume(self, app: Starlette) -> None:
        """Go on with the batches of an earlier server, which are answered by the routes of `app`."""
        if self.batches is not None:
            self.batches.resume(app)

    async def stop_batches(self) -> None:
        """End the batches; where files are kept, another server goes on with them."""
        if self.batches is not None:
            await self.batches.stop()

    async def close(self) -> None:
        """End the batches, and let go of the files."""
        await self.stop_batches()
        if self.files is not None:
            self.files.close()


def stores_of(app: Starlette) -> Stores:
    """The stores of the server whose application this is."""
    stores: Stores = app.state.stores
    return stores
