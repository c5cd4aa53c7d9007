"""A reply that is made again after a restart: what an earlier server has told of it is not told twice."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from jaxllm.errors import EngineError
from jaxllm.serving.openai.protocol.response_answers import OutputItem
from jaxllm.serving.openai.responses.store import Progress
from jaxllm.serving.text.outputs import RequestOutput


class _Added(msgspec.Struct):
    type: str
    item: OutputItem | None = None


class Told:
    """Counts what of a reply is in the events, for `Progress`."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self._num_tokens = self._num_characters = 0

    def add(self, output: RequestOutput) -> Progress:
        """Count an output of one sequence, and say how far that is."""
        (completion,) = output.outputs
        self._num_tokens += len(completion.token_ids)
        self._num_characters += len(completion.text)
        self._digest.update(completion.text.encode("utf-8", "surrogatepass"))
        return Progress(
            num_tokens=self._num_tokens, num_characters=self._num_characters, digest=self._digest.hexdigest()
        )


class Replay:
    """Divides the outputs of one sequence where an earlier server had come to."""

    def __init__(self, progress: Progress, told: Told) -> None:
        """`told` counts what is left out."""
        self._until = progress
        self._told = told
        self._tokens_left, self._characters_left = progress.num_tokens, progress.num_characters

    @property
    def over(self) -> bool:
        """Whether all that was told has come again."""
        return not self._tokens_left and not self._characters_left

    def divide(self, output: RequestOutput) -> tuple[RequestOutput, RequestOutput]:
        """What of an output was told, and what was not.

        Raises `EngineError` once it shows that the reply is another than the one that was told.
        """
        (completion,) = output.outputs
        tokens, characters = self._tokens_left, self._characters_left
        logprobs = completion.logprobs
        first = replace(
            completion,
            text=completion.text[:characters],
            token_ids=completion.token_ids[:tokens],
            logprobs=None if logprobs is None else logprobs[:tokens],
            finish_reason=None,
        )
        rest = replace(
            completion,
            text=completion.text[characters:],
            token_ids=completion.token_ids[tokens:],
            logprobs=None if logprobs is None else logprobs[tokens:],
        )
        self._tokens_left -= len(first.token_ids)
        self._characters_left -= len(first.text)
        told = replace(output, outputs=[first])
        progress = self._told.add(told)
        if self.over:
            if progress.digest != self._until.digest:
                raise differs()
        elif completion.finish_reason is not None:
            raise differs()
        return told, replace(output, outputs=[rest])


def differs() -> EngineError:
    """The error for a reply that is not the one that was told."""
    return EngineError(
        "the server was restarted and could not continue this response: its model now gives another reply than the "
        "one it had begun; send the request again"
    )


def items_of(events: Sequence[bytes]) -> list[OutputItem]:
    """The items that events of a response have begun."""
    found = []
    for event in events:
        if event.startswith(b"event: response.output_item.added\n"):
            added = msgspec.json.decode(event.partition(b"\ndata: ")[2], type=_Added)
            if added.item is not None:
                found.append(added.item)
    return found
