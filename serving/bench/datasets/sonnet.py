"""Prompts made of lines of a text. All share the first ones: what vLLM measures with Shakespeare's sonnets."""

from collections.abc import Callable

import numpy as np

from jaxllm.errors import ConfigError
from jaxllm.serving.bench.datasets.files import read_text
from jaxllm.serving.bench.datasets.request import LoadRequest

TASK = "Choose the best of these lines, and repeat them:\n"

Count = Callable[[str], int]
"""How many tokens a prompt has, with whatever is written around it."""


def sonnet(
    path: str, count: int, input_len: int, prefix_len: int, output_len: int, length: Count, rng: np.random.Generator
) -> list[LoadRequest]:
    """`count` prompts of at most `input_len` tokens; about `prefix_len` of them are the same in all.

    Raises `ConfigError` where the lengths leave no room for a line.
    """
    lines = [f"{line}\n" for line in read_text(path).split("\n") if line.strip()]
    if not lines:
        raise ConfigError(f"{path}: the file contains no lines")
    prefix: list[str] = []
    for line in lines:
        if length(TASK + "".join([*prefix, line])) > prefix_len:
            break
        prefix.append(line)
    # A line costs about as much as others: few of them have to be tried.
    per_line = max(1.0, (length(TASK + "".join(lines[:100])) - length(TASK)) / len(lines[:100]))
    room = int((input_len - length(TASK + "".join(prefix))) / per_line) + 1
    if room < 1:
        raise ConfigError(f"sonnet_input_len={input_len}: too small for the shared lines and the instruction")
    return [_request(lines, prefix, room, input_len, output_len, length, rng) for _ in range(count)]


def _request(
    lines: list[str],
    prefix: list[str],
    room: int,
    input_len: int,
    output_len: int,
    length: Count,
    rng: np.random.Generator,
) -> LoadRequest:
    chosen = [lines[index] for index in rng.integers(len(lines), size=room)]
    while chosen:
        text = TASK + "".join([*prefix, *chosen])
        tokens = length(text)
        if tokens <= input_len:
            return LoadRequest(text, output_len, tokens)
        chosen.pop()
    raise ConfigError(f"sonnet_input_len={input_len}: too small for any line after the shared prefix")
