"""Files of prompts, and of results: one per line."""

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any

from jaxllm.errors import RequestError, nearest
from jaxllm.requests.sampling_params import SamplingParams
from jaxllm.serving.text.messages import normalise_messages
from jaxllm.serving.text.outputs import CompletionOutput, RequestOutput, TokenChoices

_OWN_KEYS = ("prompt", "messages", "tools", "id")


@dataclass(slots=True)
class BatchLine:
    """One prompt of a file: text, token ids or messages, and the sampling parameters given for it."""

    number: int
    given: Mapping[str, Any]
    sampling: Mapping[str, Any]

    @property
    def where(self) -> str:
        """How errors name it."""
        return f"line {self.number}"


def read_lines(lines: Iterable[str], *, as_json: bool, sampling: Mapping[str, Any]) -> list[BatchLine]:
    """Prompts of a text file (one per line) or a JSONL file (objects with `prompt` or `messages`).

    `sampling` are the parameters of all lines, over which a JSON object's own go. Blank lines are skipped. Raises
    `RequestError` that names the line.
    """
    SamplingParams(**sampling)
    found = []
    for number, line in enumerate(lines, start=1):
        text = line.rstrip("\r\n")
        if not text.strip():
            continue
        if not as_json:
            found.append(BatchLine(number, {"prompt": text}, sampling))
            continue
        try:
            found.append(_read_object(number, text, sampling))
        except RequestError as error:
            raise RequestError(f"line {number}: {error}", error.parameter) from None
    if not found:
        raise RequestError("the file contains no prompts", "prompt")
    return found


def _read_object(number: int, text: str, sampling: Mapping[str, Any]) -> BatchLine:
    try:
        given = json.loads(text)
    except ValueError as error:
        raise RequestError(f"not valid JSON: {error}") from None
    if not isinstance(given, dict):
        raise RequestError(f"expected a JSON object, got {type(given).__name__}")
    known = [*_OWN_KEYS, *SamplingParams.__struct_fields__]
    for key in given:
        if key not in known:
            raise RequestError(f"unknown key {key!r}{nearest(key, known)}", key)
    if ("prompt" in given) == ("messages" in given):
        raise RequestError("give exactly one of 'prompt' and 'messages'", "prompt")
    if "messages" in given:
        normalise_messages(given["messages"])
    own = {**sampling, **{key: value for key, value in given.items() if key not in _OWN_KEYS}}
    SamplingParams(**own)
    return BatchLine(number, given, own)


class ResultWriter:
    """Writes results as JSON lines, in the order of the prompts, each as soon as those before it are written."""

    def __init__(self, file: IO[str], lines: list[BatchLine]) -> None:
        self._file = file
        self._lines = lines
        self._ready: dict[int, RequestOutput] = {}
        self._next = 0

    def add(self, index: int, output: RequestOutput) -> None:
        """Take the result of prompt number `index`, from 0."""
        self._ready[index] = output
        while (following := self._ready.pop(self._next, None)) is not None:
            self._write(self._next, following)
            self._next += 1

    def flush(self) -> None:
        """Write what is left, with gaps: for when the rest will never come."""
        for index in sorted(self._ready):
            self._write(index, self._ready.pop(index))
        with suppress(BrokenPipeError):
            self._file.flush()

    def _write(self, index: int, output: RequestOutput) -> None:
        given = self._lines[index].given
        for completion in output.outputs:
            record = {"index": index, **{key: given[key] for key in ("id", "prompt", "messages") if key in given}}
            if len(output.outputs) > 1:
                record["sequence"] = completion.index
            record.update(_result(completion), prompt_tokens=len(output.prompt_token_ids))
            record["completion_tokens"] = len(completion.token_ids)
            record["cached_tokens"] = output.num_cached_tokens
            if output.prompt_logprobs is not None:
                record["prompt_logprobs"] = [
                    None if item is None else _choices(item) for item in output.prompt_logprobs
                ]
            self._file.write(json.dumps(record, ensure_ascii=False) + "\n")
        self._file.flush()


def _result(completion: CompletionOutput) -> dict[str, Any]:
    result: dict[str, Any] = {"text": completion.text, "finish_reason": completion.finish_reason}
    if completion.stop_reason is not None:
        result["stop_reason"] = completion.stop_reason
    if completion.logprobs is not None:
        result["logprobs"] = [_choices(item) for item in completion.logprobs]
    return result


def _choices(choices: TokenChoices) -> list[dict[str, Any]]:
    """The chosen token first, then the alternatives."""
    return [
        {"token_id": token_id, "token": choice.decoded_token, "logprob": choice.logprob, "rank": choice.rank}
        for token_id, choice in choices.items()
    ]
