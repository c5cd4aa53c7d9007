"""Prompts of files that users give by their path. Whatever is wrong with one is a `ConfigError` that names it."""

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxllm.errors import ConfigError
from jaxllm.serving.bench.datasets.request import LoadRequest
from jaxllm.serving.bench.datasets.synthetic import batched
from jaxllm.serving.text.tokenizer import Tokenizer

CUSTOM_OUTPUT_LEN = 256
AS_THE_FILE_SAYS = -1
FEWEST_TOKENS, MOST_PROMPT_TOKENS, MOST_TOKENS = 4, 1024, 2048
"""What vLLM leaves out of a ShareGPT file: shorter prompts and answers, longer prompts, longer conversations."""
_TEXTS_AT_ONCE = 256

Order = Callable[[int], Sequence[int]]
"""In which order `n` things of a file are taken."""


def read_text(path: str) -> str:
    """The file's text."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read --dataset-path: {error}") from None


def custom(path: str, output_len: int | None, *, lines_of_text: bool) -> list[LoadRequest]:
    """A file of objects, one per line: `prompt` or `messages`, and `output_tokens`.

    With `lines_of_text`, a file not named *.jsonl or *.json has a prompt per line. `output_len` goes before what the
    file says, but -1.
    """
    # Not splitlines(): that would also cut at the rarer separators inside a text.
    lines = enumerate(read_text(path).split("\n"), start=1)
    given = [(f"{path}, line {number}", line) for number, line in lines if line.strip()]
    if lines_of_text and not path.endswith((".jsonl", ".json")):
        return [LoadRequest(line, _output_len({}, output_len, path)) for _, line in given]
    return [_custom(where, line, output_len) for where, line in given]


def _custom(where: str, line: str, output_len: int | None) -> LoadRequest:
    given = _json(where, line)
    prompt: Any = (given.get("messages") or given.get("prompt")) if isinstance(given, dict) else None
    if not _is_prompt(prompt):
        raise ConfigError(f"{where}: expected an object with 'prompt' (text or token ids) or 'messages'")
    return LoadRequest(prompt, _output_len(given, output_len, where))


def _is_prompt(prompt: Any) -> bool:
    if isinstance(prompt, str):
        return bool(prompt)
    return isinstance(prompt, list) and bool(prompt) and len({type(item) for item in prompt} & {dict, int}) == 1


def _output_len(given: Mapping[str, Any], output_len: int | None, where: str) -> int:
    if output_len not in (None, AS_THE_FILE_SAYS):
        return int(output_len or 0)
    found = given.get("output_tokens", CUSTOM_OUTPUT_LEN if output_len is None else None)
    if isinstance(found, bool) or not isinstance(found, int) or found < 1:
        raise ConfigError(f"{where}: output_tokens={found!r}: expected a whole number above 0")
    return found


def sharegpt(path: str, output_len: int | None, order: Order, tokenizer: Tokenizer) -> Iterator[LoadRequest]:
    """The first turn of every conversation, which asks for as many tokens as its answer has.

    The file is a JSON list of objects with `conversations`, a list of objects with `value`. What is very short or long
    is left out as in vLLM.
    """
    found = _json(path, read_text(path))
    if not isinstance(found, list):
        raise ConfigError(f"{path}: expected a JSON list of objects with 'conversations'")
    turns = [_turns(f"{path}, item {index}", item) for index, item in enumerate(found)]
    pairs = [pair for pair in turns if pair is not None]
    for some in batched((pairs[index] for index in order(len(pairs))), _TEXTS_AT_ONCE):
        prompts = tokenizer.encode([prompt for prompt, _ in some])
        answers = tokenizer.encode([answer for _, answer in some])
        for (prompt, _), ids, answer in zip(some, prompts, answers, strict=True):
            tokens = len(answer) if output_len is None else output_len
            long_enough = len(ids) >= FEWEST_TOKENS and (output_len is not None or tokens >= FEWEST_TOKENS)
            if long_enough and len(ids) <= MOST_PROMPT_TOKENS and len(ids) + tokens <= MOST_TOKENS:
                yield LoadRequest(prompt, tokens, len(ids))


def _turns(where: str, item: Any) -> tuple[str, str] | None:
    """The first two turns, or None where there is only one."""
    turns = item.get("conversations") if isinstance(item, dict) else None
    if not isinstance(turns, list):
        raise ConfigError(f"{where}: expected an object with 'conversations'")
    values: list[Any] = [turn.get("value") if isinstance(turn, dict) else None for turn in turns[:2]]
    if not all(isinstance(value, str) for value in values):
        raise ConfigError(f"{where}: expected turns with a text 'value'")
    return (values[0], values[1]) if len(values) == 2 else None


def burstgpt(path: str) -> list[tuple[int, int]]:
    """The lengths (tokens in, tokens out) of the requests to GPT-4 that were answered, of a CSV file of BurstGPT's."""
    rows = csv.DictReader(read_text(path).splitlines())
    needed = ("Model", "Request tokens", "Response tokens")
    missing = [name for name in needed if name not in (rows.fieldnames or ())]
    if missing:
        raise ConfigError(f"{path}: the header has no column {missing[0]!r}")
    found = []
    for row in rows:
        try:
            lengths = int(row["Request tokens"]), int(row["Response tokens"])
        except (ValueError, TypeError):
            raise ConfigError(f"{path}, line {rows.line_num}: expected whole numbers of tokens") from None
        if row["Model"] == "GPT-4" and min(lengths) > 0:
            found.append(lengths)
    return found


def _json(where: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{where}: not valid JSON: {error}") from None
