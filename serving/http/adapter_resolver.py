"""Finds LoRA adapters that requests name and nobody has loaded: in a folder or on the Hub, as the operator allows.

vLLM's resolvers do the same, as plugins. Only names as they are in the folder count, and only listed repositories.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path, PurePosixPath

from jaxllm.errors import RequestError, RequestFaultError, quoted
from jaxllm.models.adapters.errors import AdapterError
from jaxllm.models.adapters.file_names import CONFIG_FILE
from jaxllm.models.adapters.hub import download_adapter
from jaxllm.requests.lora_request import MAX_NAME, LoRARequest
from jaxllm.serving.http.adapters import ServedAdapters
from jaxllm.serving.http.errors import HttpError

MAX_FAILURES = 1024
"""Names that are remembered as not there, or as unusable."""
FAILURE_SECONDS = 10.0
"""How long a name is remembered so. Whoever adds a folder need not restart the server."""
MAX_DOWNLOADS = 2
"""Adapters that are downloaded at a time."""

AddAdapter = Callable[[LoRARequest], Awaitable[object]]


class AdapterResolver:
    """Serves adapters by the names that requests give. Belongs to an event loop.

    A name is looked for once at a time, whoever asks for it. `clock` is in seconds.
    """

    def __init__(
        self,
        adapters: ServedAdapters,
        add: AddAdapter,
        *,
        folder: str | None = None,
        repositories: Sequence[str] = (),
        download_dir: str | None = None,
        token: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`add` has the engines read an adapter, and raises `RequestError` for one that they cannot serve."""
        self._adapters, self._add, self._clock = adapters, add, clock
        self._folder = None if folder is None else Path(folder)
        self._repositories = tuple(repositories)
        self._download_dir, self._token = download_dir, token
        self._failures: OrderedDict[str, tuple[float, RequestError | None]] = OrderedDict()
        self._running: dict[str, asyncio.Task[RequestError | None]] = {}
        self._turns = asyncio.Semaphore(MAX_DOWNLOADS)

    async def resolve(self, name: str) -> None:
        """Serve the adapter of this name, if there is one; nothing where there is none.

        Raises the `RequestError` that reading or downloading it ended with.
        """
        if self._adapters.knows(name) or not _is_canonical(name):
            return
        when, error = self._failures.get(name, (None, None))
        if when is None or self._clock() - when > FAILURE_SECONDS:
            task = self._running.get(name)
            if task is None:
                task = self._running[name] = asyncio.create_task(self._load(name))
                task.add_done_callback(lambda _: self._running.pop(name, None))
            # A client that leaves does not end what others wait for.
            error = await asyncio.shield(task)
        if error is not None:
            raise error.with_traceback(None)

    async def _load(self, name: str) -> RequestError | None:
        """Serve an adapter; why it cannot be served."""
        error: RequestError | None = None
        try:
            path = await self._find(name)
            if path is not None:
                adapter = self._adapters.make(name, str(path))
                await self._add(adapter)
                self._adapters.add(adapter)
                self._failures.pop(name, None)
                return None
        except HttpError:
            return None  # It was loaded by another request meanwhile.
        except RequestError as found:
            error = found
        except AdapterError as found:
            error = RequestFaultError(f"adapter {quoted(name)}: {found}")
        self._failures[name] = self._clock(), error
        self._failures.move_to_end(name)
        if len(self._failures) > MAX_FAILURES:
            self._failures.popitem(last=False)
        return error

    async def _find(self, name: str) -> Path | None:
        """The adapter's folder. Raises `AdapterError` where the Hub does not answer."""
        if self._folder is not None:
            found = await asyncio.to_thread(_folder_in, self._folder, name)
            if found is not None:
                return found
        for repository in self._repositories:
            if name == repository or name.startswith(f"{repository}/"):
                async with self._turns:
                    return await asyncio.to_thread(self._download, repository, name[len(repository) + 1 :])
        return None

    def _download(self, repository: str, folder: str) -> Path | None:
        root = download_adapter(repository, folder, download_dir=self._download_dir, token=self._token)
        return root / folder if root is not None and (root / folder / CONFIG_FILE).is_file() else None


def _is_canonical(name: str) -> bool:
    """Whether a name is a relative path as it is written in one way only: a folder must not have many names."""
    path = PurePosixPath(name)
    return (
        0 < len(name) <= MAX_NAME
        and str(path) == name != "."
        and not path.is_absolute()
        and ".." not in path.parts
        and "\\" not in name
        and name.isprintable()
        and not set(name) & set("*?[")
    )


def _folder_in(root: Path, name: str) -> Path | None:
    """The folder of an adapter below `root`, also after links are followed."""
    try:
        base = root.resolve()
        found = (base / name).resolve()
        is_there = found.is_relative_to(base) and found != base and (found / CONFIG_FILE).is_file()
    except (OSError, ValueError, RuntimeError):
        return None
    return found if is_there else None
