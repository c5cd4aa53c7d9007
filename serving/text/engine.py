"""Shared by engines that take text, whether they generate or pool."""

import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, NoReturn, Protocol, TypeVar, cast

from jaxllm.errors import EngineError, RequestError, quoted
from jaxllm.requests.outputs import EngineOutput
from jaxllm.requests.request import as_request_ids
from jaxllm.serving.text.measurements import EndReason
from jaxllm.serving.text.output_processor import Processed
from jaxllm.serving.text.progress import SequenceProgress
from jaxllm.serving.text.prompts import naming_prompt
from jaxllm.serving.text.token_engine import TokenEngine
from jaxllm.serving.text.tokenizer import Tokenizer


class Prepared(Protocol):
    """A checked request, and what the engine runs for it."""

    request_id: str
    children: list[Any]


Request = TypeVar("Request", bound=Prepared)
Request_contra = TypeVar("Request_contra", bound=Prepared, contravariant=True)


class OutputSink(Protocol[Request_contra]):
    """Follows the requests in flight: an `OutputProcessor` or a `PoolingProcessor`."""

    def __len__(self) -> int:
        """Unfinished requests."""

    def __contains__(self, request_id: str) -> bool:
        """Whether this one is unfinished."""

    @property
    def num_queued_tokens(self) -> int:
        """Prompt tokens of the requests that have brought nothing yet."""

    def running(self) -> dict[str, str]:
        """The engine's ids that outputs are expected for, each with the id of the request that it belongs to."""

    def in_flight(self) -> Iterator[SequenceProgress]:
        """How far each sequence has come."""

    def add(self, request: Request_contra, reader: Any = None) -> None:
        """Expect outputs of it; `reader` waits for them."""

    def progress(self, request_id: str) -> tuple[int, int]:
        """How far a request has come; it differs after any news of it."""

    def continued(self, request_id: str) -> list[Any]:
        """The children of a request that the engine has to go on with, and their output so far: for another engine."""

    def interrupt(self, request_ids: Iterable[str], engine: int, reason: str) -> None:
        """The engine of this number, which had these requests, has ended for a reason: for their traces."""

    def release(self, request_id: str) -> Any:
        """What is known of a request, which goes on, for another of these to `adopt`."""

    def adopt(self, followed: Any) -> None:
        """Follow a request that another of these has released."""

    def process(self, outputs: Iterable[EngineOutput]) -> Processed:
        """Take the outputs of one step."""

    def abort(self, request_ids: Iterable[str], reason: EndReason = "abort") -> list[str]:
        """Forget these; the engine's ids of what still runs of them."""

    def end(self, request_ids: Iterable[str]) -> Processed:
        """Forget these, with last results that say so; in `aborted` are the engine's ids of what still runs."""

    def abort_all(self) -> list[str]:
        """Forget all."""


class TextEngine(ABC, Generic[Request]):
    """An engine driven step by step. Not thread-safe.

    `engine` runs token ids, `tokenizer` is None where there is no text. It owns `engine`, which is closed by `close()`
    or when the last reference goes.
    """

    def __init__(self, engine: TokenEngine, tokenizer: Tokenizer | None, outputs: OutputSink[Request]) -> None:
        self.engine = engine
        self.tokenizer = tokenizer
        self._outputs = outputs
        self._finalizer = weakref.finalize(self, engine.close)
        # At exit the process gives everything back by itself, and JAX may be gone already.
        self._finalizer.atexit = False

    @abstractmethod
    def step(self) -> list[Any]:
        """Run one step; the results it brings."""

    def advance(self) -> tuple[list[Any], list[tuple[str, RequestError]]]:
        """`step`, which raises for no request: the results, and the requests that it rejected, with the reasons."""
        return self.step(), []

    def keep(self, outputs: Iterable[Any], refused: Iterable[tuple[str, RequestError]]) -> None:
        """Take what `advance` brought for requests that its caller did not add. Nothing, where there are none."""

    def add(self, requests: Sequence[Request]) -> None:
        """Queue prepared requests, all or none: raises `RequestError` for the first the engine rejects."""
        added: list[str] = []
        try:
            for index, request in enumerate(requests):
                if not isinstance(request.request_id, str):
                    raise RequestError(f"request_id={quoted(request.request_id)}: must be a string", "request_id")
                if request.request_id in self._outputs:
                    raise RequestError(f"request_id={quoted(request.request_id)} is in use", "request_id")
                self._outputs.add(request)
                added.append(request.request_id)
                with naming_prompt(index, len(requests)):
                    for child in request.children:
                        self.engine.add_request(child)
        except BaseException:
            self.abort_request(added)
            raise

    def has_unfinished_requests(self) -> bool:
        """Whether `step` has anything to do."""
        return len(self._outputs) > 0

    def abort_request(self, request_ids: str | Iterable[str]) -> None:
        """End one request, or several, without further outputs. Unknown ids are ignored."""
        self._abort(self._outputs.abort(as_request_ids(request_ids)))

    def abort_all(self) -> None:
        """End all requests without further outputs."""
        self._abort(self._outputs.abort_all())

    def _abort(self, children: list[str]) -> None:
        if children:
            self.engine.abort_request(children)

    def close(self) -> None:
        """Free the engine and its device memory: whatever is asked of it afterwards raises `EngineError`."""
        self._finalizer()
        self.engine = cast(TokenEngine, _ClosedEngine())


class _ClosedEngine:
    """Stands where an engine was, so that a step need not ask whether it is still there."""

    def __getattr__(self, name: str) -> NoReturn:
        raise EngineError("this engine is closed: create a new one")
