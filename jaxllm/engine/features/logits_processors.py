"""The logits processors of an engine: which requests use which, and what these make of logits.

Axis letters: n rows of a step, V vocabulary.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from jaxllm.errors import RequestError
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.executor.sampler.compiled_processors import CompiledProcessors
from jaxllm.processors.host import Float32Array, HostProcessor
from jaxllm.processors.interface import JaxLogitsProcessor
from jaxllm.processors.loading import label
from jaxllm.requests.request import Request

logger = logging.getLogger(__name__)

Int32Array = npt.NDArray[np.int32]


@dataclass(frozen=True)
class _Use:
    """What a request uses: processors on the host, and the `bits` and `numbers` (int32 [K]) of compiled ones."""

    host: tuple[HostProcessor, ...]
    bits: int
    numbers: Int32Array


class Processing:
    """Belongs to an engine. Code that others wrote is called here, so whatever it raises is one request's problem."""

    def __init__(self, resolved: ResolvedConfig) -> None:
        """Make the processors. Raises `ConfigError`."""
        kinds = resolved.processors
        self._kinds = kinds
        self._compiled = CompiledProcessors.of(resolved)
        self._host = tuple(
            HostProcessor(kind, resolved.config) for kind in kinds if not issubclass(kind, JaxLogitsProcessor)
        )
        self._uses: dict[Request, _Use] = {}
        self._asked: tuple[Request, _Use | RequestError] | None = None  # about this one last, which is queued next

    def handles(self, request: Request) -> bool:
        """Whether a request uses any processor, or cannot be served."""
        try:
            found: _Use | RequestError = self._use(request)
        except RequestError as error:
            found = error
        self._asked = request, found
        return isinstance(found, RequestError) or bool(found.host or found.bits)

    def begin(self, request: Request) -> None:
        """Take a request that is queued, about which `handles` was asked last. Raises `RequestError`."""
        assert self._asked is not None
        (asked, use), self._asked = self._asked, None
        assert asked is request
        if isinstance(use, RequestError):
            raise use
        if not (use.host or use.bits):
            return
        if request.params.num_searched:
            raise RequestError(
                "use_beam_search cannot be combined with logits processors, because beams are ranked by the model's "
                "own scores; omit it, or return False from the processor's `uses`",
                "use_beam_search",
            )
        self._uses[request] = use

    def forget(self, request: Request) -> None:
        """A request has ended."""
        use = self._uses.pop(request, None)
        if use is not None:
            for processor in use.host:
                processor.forget(request)

    def has(self, request: Request) -> bool:
        """Whether the request uses any processor."""
        return request in self._uses

    def on_host(self, request: Request) -> bool:
        """Whether it uses one that runs on the host."""
        return bool(self._uses[request].host)

    def compiled(
        self, requests: Sequence[Request], output_of: Callable[[Request], Int32Array]
    ) -> tuple[Int32Array, Int32Array, dict[int, str]]:
        """For compiled processors: int32 [n], which of them each request uses, and int32 [n, K], its numbers.

        `output_of` gives the tokens of a request so far. Also the rows of processors that have failed, with the reason.
        """
        uses = [self._uses[request] for request in requests]
        bits = np.array([use.bits for use in uses], np.int32)
        numbers, problems = np.array([use.numbers for use in uses], np.int32).reshape(len(uses), -1), dict[int, str]()
        for row in np.flatnonzero(bits & self._compiled.following).tolist():
            request = requests[row]
            try:
                own = self._compiled.numbers_after(request.params, output_of(request), uses[row].bits, numbers[row])
            except RuntimeError as error:
                logger.exception("request %s", request.request_id)
                problems[row] = str(error)
            else:
                numbers[row] = own
        return bits, numbers, problems

    def apply(self, requests: Sequence[Request], outputs: Sequence[Int32Array], logits: Float32Array) -> dict[int, str]:
        """Change the logits float32 [n, V] of these requests in place, after these tokens of each.

        Returns the rows whose processors have failed, with the reason.
        """
        problems: dict[int, str] = {}
        for processor in self._host:
            rows = [
                row
                for row, request in enumerate(requests)
                if processor in self._uses[request].host and row not in problems
            ]
            if not rows:
                continue
            temperatures = None
            if processor.is_argmax_invariant:
                temperatures = np.array([requests[row].params.temperature for row in rows], np.float32)[:, None]
            before = logits[rows]
            given = before.copy() if temperatures is None else before / temperatures
            found, failed = processor.apply(
                [requests[row] for row in rows],
                [outputs[row] for row in rows],
                given if temperatures is None else given.copy(),
            )
            problems |= {rows[index]: message for index, message in failed.items()}
            if temperatures is not None:
                # Dividing and multiplying would change the last digit of what the processor leaves alone.
                found = np.where(found == given, before, found * temperatures)
            logits[rows] = found
        return problems

    def _use(self, request: Request) -> _Use:
        """Raises `RequestError`."""
        params = request.params
        for kind in self._kinds:
            validate = getattr(kind, "validate_params", None)
            try:
                if validate is not None:
                    validate(params)
            except ValueError as error:
                raise RequestError(str(error), "extra_args") from error
            except Exception as error:
                raise _failed(label(kind), error) from error
        host = []
        for processor in self._host:
            try:
                if processor.uses(params):
                    host.append(processor)
            except Exception as error:
                raise _failed(processor.name, error) from error
        bits, numbers = self._compiled.numbers_of(params)
        return _Use(tuple(host), bits, numbers)


def _failed(name: str, error: Exception) -> RequestError:
    return RequestError(f"logits processor {name} rejects the request: {type(error).__name__}: {error}", "extra_args")
