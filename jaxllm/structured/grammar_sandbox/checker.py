"""Grammars tried by another process before a request is sent to the engine."""

from concurrent.futures import Future

from jaxllm.config import StructuredOptions
from jaxllm.errors import RequestError
from jaxllm.requests.structured_outputs import StructuredOutputsParams
from jaxllm.structured.backend import Vocabulary
from jaxllm.structured.grammar_sandbox.client import Canary
from jaxllm.structured.grammar_sandbox.messages import Budget, Verdict
from jaxllm.structured.options import with_options


class CanaryChecker:
    """Has forms tried by a `Canary`."""

    def __init__(self, canary: Canary, options: StructuredOptions) -> None:
        """`options` are the engine's, which compiles the same."""
        self._canary, self._options = canary, options

    def start(self) -> None:
        """Start the process now, so that the first grammar need not wait for it."""
        self._canary.start()

    def ask(self, form: StructuredOutputsParams, owner: str = "") -> "Future[Verdict]":
        """Have a form tried, unless it was before; see `Canary.ask`."""
        form.validate()
        return self._canary.ask(with_options(form, self._options), owner)

    def check(self, form: StructuredOutputsParams) -> int:
        """Wait for the verdict. Raises `RequestError` and `QueueFullError`."""
        verdict = self.ask(form).result()
        if verdict.error is None:
            return verdict.size
        if verdict.parameter is None:
            raise RequestError(f"{form.kind}: {verdict.error}", form.kind)
        raise RequestError(verdict.error, verdict.parameter)

    def close(self) -> None:
        """End the process."""
        self._canary.close()


def make_canary_checker(options: StructuredOptions, vocabulary: Vocabulary) -> CanaryChecker:
    """A checker for an engine with these options. Raises `RequestError` where processes cannot fork."""
    return CanaryChecker(Canary(options.structured_outputs_backend, vocabulary, Budget()), options)
