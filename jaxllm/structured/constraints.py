"""The constraints of an engine's requests: made when their grammars are compiled, asked for masks at every step."""

from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from jaxllm.config import StructuredOptions
from jaxllm.errors import RequestError
from jaxllm.requests.request import Request
from jaxllm.structured.backend import Grammar, Matcher, Vocabulary, make_backend, mask_words
from jaxllm.structured.compiler import GrammarCompiler
from jaxllm.structured.constraint import Constraint
from jaxllm.structured.options import with_options

WAIT_SECONDS = 0.005
"""How long `wait` waits: as long as a request may have to that arrives meanwhile."""


class Constraints:
    """Compiles the grammars of requests alongside the engine's loop, and says which tokens may follow.

    Requests that ask for nothing of the kind never come here. Not thread-safe; the compiler has threads of its own.
    """

    def __init__(self, vocabulary: Vocabulary, options: StructuredOptions) -> None:
        self._vocabulary = vocabulary
        self._options = options
        self._words = mask_words(vocabulary.size)
        self._compiler = GrammarCompiler(
            lambda: make_backend(options.structured_outputs_backend, self._vocabulary),
            options.structured_outputs_cache_size,
        )
        self._compiling: dict[Request, Future[Grammar]] = {}
        if options.structured_outputs_preload:
            _ = self._compiler.backend

    def begin(self, request: Request) -> bool:
        """Give a request its constraint; False when its grammar has yet to be compiled, see `ready`."""
        if not self._vocabulary.end_token_ids:
            # The tokenizer's may be known where the model's are not.
            self._vocabulary = replace(self._vocabulary, end_token_ids=tuple(request.eos_token_ids))
        form = request.params.structured_outputs
        if form is None:
            self._give(request, None)
            return True
        self._compiling[request] = self._compiler.compile(with_options(form, self._options), request.grammar_bytes)
        return False

    @property
    def num_words(self) -> int:
        """Words of a mask."""
        return self._words

    def ready(self) -> list[tuple[Request, Future[Grammar]]]:
        """The requests whose compilation has ended since the last call, each with its result for `start`."""
        if not self._compiling:
            return []
        done = [(request, future) for request, future in self._compiling.items() if future.done()]
        for request, _ in done:
            del self._compiling[request]
        return done

    def start(self, request: Request, compiled: Future[Grammar]) -> None:
        """Give a request its constraint. Raises `RequestError` where its grammar is wrong."""
        self._give(request, compiled.result().matcher())

    def _give(self, request: Request, matcher: Matcher | None) -> None:
        """Give a request its constraint, after the output that it may have of another engine. Raises `RequestError`."""
        constraint = Constraint(request.params, matcher, request.eos_token_ids)
        problem = constraint.take(request.output_token_ids) if request.output_token_ids else None
        if problem is not None:
            raise RequestError(f"structured_outputs: {problem}", "structured_outputs")
        request.constraint = constraint

    def wait(self) -> None:
        """Wait a little for a grammar."""
        wait(self._compiling.values(), WAIT_SECONDS, FIRST_COMPLETED)

    def forget(self, request: Request) -> None:
        """The request is gone; a compilation that nobody else waits for does not begin any more."""
        future = self._compiling.pop(request, None)
        if future is not None and future not in self._compiling.values():
            self._compiler.cancel(future)

    def fill(self, requests: Sequence[Request]) -> tuple[npt.NDArray[np.int32], list[str | None]]:
        """`masks` of the constraints that these requests have."""
        constraints = [request.constraint for request in requests if request.constraint is not None]
        assert len(constraints) == len(requests)
        return self.masks(constraints)

    def masks(self, constraints: Sequence[Constraint]) -> tuple[npt.NDArray[np.int32], list[str | None]]:
        """Which tokens may come next by each constraint, int32 [n, W], and what is wrong with it, mostly None."""
        masks = np.empty((len(constraints), self._words), np.int32)
        problems: list[str | None] = [None] * len(constraints)
        by_grammar = []
        for row, constraint in enumerate(constraints):
            if constraint.follows_grammar:
                assert constraint.matcher is not None
                by_grammar.append((constraint.matcher, row))
            else:
                constraint.fill(masks[row])
        if by_grammar:
            found = self._compiler.backend.fill(by_grammar, masks)
            for (_, row), problem in zip(by_grammar, found, strict=True):
                problems[row] = problem
                constraints[row].adjust(masks[row])
        return masks, problems

    def close(self) -> None:
        """End the threads."""
        self._compiler.close()
