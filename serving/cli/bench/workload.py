"""What a load test sends, and when."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jaxllm.errors import ConfigError


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """One request: its prompt (text, token ids or a list of messages) and how many tokens it asks for.

    `prompt_tokens` is what is known of the prompt's length before the server says it; 0: nothing.
    """

    prompt: str | list[int] | list[dict[str, Any]]
    output_tokens: int
    prompt_tokens: int = 0


def random_requests(
    count: int,
    input_len: int,
    output_len: int,
    range_ratio: float,
    vocabulary: Sequence[int],
    rng: np.random.Generator,
    decode: Callable[[list[int]], str] | None = None,
) -> list[LoadRequest]:
    """Prompts of random tokens; lengths are uniform in (1 - range_ratio) to (1 + range_ratio) times those given.

    With `decode`, prompts are text, whose length in tokens is then only about what was asked for.
    """
    tokens = np.asarray(vocabulary)
    found = []
    for input_tokens, output_tokens in zip(
        _lengths(count, input_len, range_ratio, rng), _lengths(count, output_len, range_ratio, rng), strict=True
    ):
        prompt = rng.choice(tokens, size=input_tokens).tolist()
        found.append(LoadRequest(prompt if decode is None else decode(prompt), output_tokens, input_tokens))
    return found


def _lengths(count: int, length: int, ratio: float, rng: np.random.Generator) -> list[int]:
    low, high = max(1, math.floor(length * (1 - ratio))), max(1, math.ceil(length * (1 + ratio)))
    return [int(each) for each in rng.integers(low, high + 1, size=count)]


def read_requests(name: str, count: int, output_len: int, rng: np.random.Generator) -> list[LoadRequest]:
    """`count` requests from a file, drawn again and again if it has fewer.

    A file named *.jsonl holds an object per line, with `prompt` or `messages`, and `output_tokens` if it is not
    `output_len`; any other file a prompt per line. Raises `ConfigError` that names the line.
    """
    try:
        lines = Path(name).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read --dataset-path: {error}") from None
    as_json = name.endswith((".jsonl", ".json"))
    found = [
        _from_json(f"{name}, line {number}", line, output_len) if as_json else LoadRequest(line, output_len)
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ]
    if not found:
        raise ConfigError(f"{name}: the file holds no prompts")
    order = np.concatenate([rng.permutation(len(found)) for _ in range(-(-count // len(found)))])
    return [found[index] for index in order[:count]]


def _from_json(where: str, line: str, output_len: int) -> LoadRequest:
    try:
        given = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{where}: not valid JSON: {error}") from None
    prompt = (given.get("messages") or given.get("prompt")) if isinstance(given, dict) else None
    if not prompt:
        raise ConfigError(f"{where}: expected an object with 'prompt' or 'messages'")
    return LoadRequest(prompt, int(given.get("output_tokens", output_len)))


def send_times(count: int, rate: float, burstiness: float, rng: np.random.Generator) -> list[float]:
    """Seconds after the start at which requests are sent, `rate` of them per second on average.

    Gaps follow a gamma distribution of shape `burstiness`: 1 is a Poisson process, less comes in bursts, more is more
    even. They are scaled so that the last request is sent at `count / rate`. An infinite rate sends all at once.
    """
    if math.isinf(rate):
        return [0.0] * count
    times = np.cumsum(rng.gamma(burstiness, 1.0 / (rate * burstiness), size=count))
    return [float(each) for each in times * (count / rate / times[-1])]
