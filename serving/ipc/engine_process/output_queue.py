"""The queue of messages to the client."""

import threading
from collections import deque

from jaxllm.engine.stats import StepStats
from jaxllm.requests.outputs import EngineOutput
from jaxllm.serving.ipc.messages import Credit, FromEngine, Outputs
from jaxllm.serving.ipc.wire import CREDIT


class OutputQueue:
    """A queue in which the outputs of steps merge while nobody takes them.

    However slowly the client reads, it never holds more than one output per request in flight. Thread-safe.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._messages: deque[FromEngine] = deque()
        self._outputs: dict[str, EngineOutput] = {}
        self._stats: StepStats | None = None
        self._behind: list[FromEngine] = []
        self._closed = False
        self._told = 0
        self.taken = 0
        """Messages of the client that the loop has taken. Every message tells it."""

    def count_taken(self) -> None:
        """The loop has taken one more message of the client."""
        self.taken += 1
        if self.taken - self._told == CREDIT // 2:
            # The client may run out of credit before there are outputs.
            with self._changed:
                self._changed.notify()

    def put_behind(self, message: FromEngine) -> None:
        """Queue a message after the outputs that wait."""
        with self._changed:
            self._behind.append(message)
            self._changed.notify()

    def put(self, message: FromEngine) -> None:
        """Queue a message. It overtakes outputs that still wait."""
        with self._changed:
            self._messages.append(message)
            self._changed.notify()

    def put_outputs(self, outputs: list[EngineOutput], stats: StepStats | None) -> None:
        """Queue the outputs of a step; without `stats`, outputs outside of any step."""
        with self._changed:
            for output in outputs:
                waiting = self._outputs.get(output.request_id)
                if waiting is None:
                    self._outputs[output.request_id] = output
                else:
                    merge(waiting, output)
            if stats is not None:
                self._stats = stats if self._stats is None else self._stats.merged(stats)
            self._changed.notify()

    def close(self) -> None:
        """Let `take` return None once everything is taken."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def take(self) -> FromEngine | None:
        """Wait for the next message. None after `close`."""
        with self._changed:
            while (message := self._next()) is None and not self._closed:
                self._changed.wait()
            self._told = self.taken
            return message

    def _next(self) -> FromEngine | None:
        if self._messages:
            return self._messages.popleft()
        message: FromEngine | None = None
        if self._has_outputs():
            message = Outputs(list(self._outputs.values()), self._stats)
            self._outputs, self._stats = {}, None
        # All outputs from before are in this message.
        self._messages.extend(self._behind)
        self._behind.clear()
        if message is None and self._messages:
            return self._messages.popleft()
        if message is None and self.taken - self._told >= CREDIT // 2:
            return Credit()
        return message

    def _has_outputs(self) -> bool:
        return bool(self._outputs) or self._stats is not None


def merge(first: EngineOutput, then: EngineOutput) -> None:
    """Put later outputs of the same request into `first`."""
    first.token_ids = first.token_ids + then.token_ids
    if then.logprobs is not None:
        first.logprobs = [*(first.logprobs or ()), *then.logprobs]
    if then.prompt_logprobs is not None:
        first.prompt_logprobs = then.prompt_logprobs
    if then.sequences is not None:
        first.sequences = then.sequences
    if first.drafts is None:
        first.drafts = then.drafts
    elif then.drafts is not None:
        first.drafts.steps = first.drafts.steps + then.drafts.steps
    if then.kv_transfer_params is not None:
        first.kv_transfer_params = then.kv_transfer_params
    first.finish_reason, first.stop_reason = then.finish_reason, then.stop_reason
    first.refusal, first.refused_parameter, first.is_fault = then.refusal, then.refused_parameter, then.is_fault
    first.num_cached_tokens = max(first.num_cached_tokens, then.num_cached_tokens)
    first.num_external_tokens = max(first.num_external_tokens, then.num_external_tokens)
    first.scheduled_time = first.scheduled_time if first.scheduled_time is not None else then.scheduled_time
