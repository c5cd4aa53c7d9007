"""Kills and stops the engines of a server under load, and compares every answer with that of an undisturbed run."""

import argparse
import asyncio
import json
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

from benchmarks.shared.running_server import RunningServer
from jaxllm.serving.bench.client import EventReader

FLAGS = (
    *("demo", "--disable-log-stats", "--max-restarts", "100000", "--step-timeout", "5", "--optimization-level", "0"),
    *("--max-model-len", "512", "--max-num-seqs", "32", "--max-num-batched-tokens", "64"),
    *("--num-gpu-blocks-override", "128"),
)
"""Few programs, so that a start is quick, and so few pages that requests are preempted as well."""
STORY = {"max_tokens": 300, "ignore_eos": True, "temperature": 0}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "find",
            "parameters": {"type": "object", "properties": {"text": {"type": "string", "maxLength": 80}},
                           "required": ["text"], "additionalProperties": False},
        },
    }
]  # fmt: skip
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 80}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "greedy": (COMPLETIONS, {"prompt": "Once upon a time", **STORY}),
    "seeded": (COMPLETIONS, {"prompt": "The dog", **STORY, "temperature": 1, "seed": 3}),
    "several": (COMPLETIONS, {"prompt": "The cat", **STORY, "temperature": 1, "seed": 5, "n": 3}),
    "penalties": (
        COMPLETIONS,
        {"prompt": "A bird", **STORY, "presence_penalty": 0.5, "frequency_penalty": 0.4, "repetition_penalty": 1.1},
    ),
    "logprobs": (COMPLETIONS, {"prompt": "The sun", **STORY, "logprobs": 3, "max_tokens": 100}),
    "stop": (COMPLETIONS, {"prompt": "The tree", **STORY, "stop": ["zebra"], "min_tokens": 100}),
    "chat": (CHATS, {"messages": [{"role": "user", "content": "Tell me a story"}], **STORY}),
    "schema": (
        CHATS,
        {
            "messages": [{"role": "user", "content": "Who are you?"}], "temperature": 1, "seed": 7, "max_tokens": 200,
            "response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}},
        },
    ),
    "tools": (
        CHATS,
        {
            "messages": [{"role": "user", "content": "Find a fox"}], "temperature": 1, "seed": 9, "max_tokens": 200,
            "tools": TOOLS, "tool_choice": "required",
        },
    ),
}  # fmt: skip
"""Requests whose answers are known: by path and body. Each is asked as a stream and as a whole."""
IGNORED = ("id", "created", "prompt_tokens_details", "system_fingerprint")
"""Fields that differ between two answers to the same request."""


@dataclass
class Tally:
    """The outcome of a run. Times in seconds."""

    answers: int = 0
    wrong: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    longest_gap: float = 0.0
    done_to_engines: Counter[str] = field(default_factory=Counter)


def plain(value: Any) -> Any:
    """A value without what differs between two answers."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items() if key not in IGNORED}
    return [plain(each) for each in value] if isinstance(value, list) else value


def joined(known: Any, more: Any, key: str = "") -> Any:
    """The two parts of a stream as one: texts and lists one after the other, in whatever pieces they came."""
    if known is None or more is None:
        return more if known is None else known
    if isinstance(known, dict) and isinstance(more, dict):
        return {name: joined(known.get(name), more.get(name), name) for name in (*known, *(more.keys() - known))}
    if isinstance(known, list) and isinstance(more, list):
        if more and isinstance(more[0], dict) and "index" in more[0]:
            by_index = {each["index"]: each for each in known}
            for each in more:
                by_index[each["index"]] = joined(by_index.get(each["index"]), each)
            return [by_index[index] for index in sorted(by_index)]
        return known + more
    whole = key in ("model", "object", "role", "finish_reason", "type", "name")
    return known + more if isinstance(known, str) and not whole else more


async def ask(client: httpx.AsyncClient, kind: str, *, stream: bool, tally: Tally) -> Any:
    """The answer, without what differs. Raises `RuntimeError` for an error of the server."""
    path, body = KINDS[kind]
    if not stream:
        response = await client.post(path, json=body)
        if response.status_code != 200:
            raise RuntimeError(f"{kind}: {response.status_code} {response.text[:300]}")
        return plain(response.json())
    found: Any = None
    reader, ended, last = EventReader(), False, time.monotonic()
    asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
    async with client.stream("POST", path, json=asked) as response:
        async for data in response.aiter_bytes():
            now = time.monotonic()
            tally.longest_gap, last = max(tally.longest_gap, now - last), now
            for event in reader.feed(data):
                ended = event == b"[DONE]"
                part = {} if ended else json.loads(event)
                if "error" in part:
                    raise RuntimeError(f"{kind}: {part['error']}")
                found = joined(found, plain(part))
    if not ended:
        raise RuntimeError(f"{kind}: the stream was cut off")
    return found


def engines_of(server: RunningServer) -> list[psutil.Process]:
    """The engine processes."""
    found = []
    for child in psutil.Process(server.process.pid).children(recursive=True):
        with suppress(psutil.Error):
            if "jaxllm.serving.ipc.engine_process" in child.cmdline():
                found.append(child)
    return found


async def disturb(server: RunningServer, given: argparse.Namespace, draw: random.Random, tally: Tally) -> None:
    """Kill or stop an engine now and then. The server kills one that it takes for stopped."""
    while True:
        await asyncio.sleep(draw.expovariate(1 / given.every))
        engines = engines_of(server)
        if engines:
            number = signal.SIGSTOP if draw.random() < given.stops else signal.SIGKILL
            with suppress(psutil.Error):
                draw.choice(engines).send_signal(number)
                tally.done_to_engines[number.name] += 1


async def worker(client: httpx.AsyncClient, wanted: dict[tuple[str, bool], Any], until: float, tally: Tally) -> None:
    """Ask at random, and compare."""
    while time.monotonic() < until:
        kind, stream = random.choice(list(wanted))
        try:
            found = await ask(client, kind, stream=stream, tally=tally)
        except (RuntimeError, httpx.HTTPError) as error:
            tally.errors.append(repr(error))
        else:
            tally.answers += 1
            if found != wanted[kind, stream]:
                tally.wrong.append(f"{kind}, stream={stream}: {found} instead of {wanted[kind, stream]}")


async def run(server: RunningServer, given: argparse.Namespace) -> Tally:
    """Ask for everything undisturbed, then again and again under attack."""
    tally, draw = Tally(), random.Random(given.seed)
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=server.base_url, timeout=300, limits=limits) as client:
        asked = [(kind, stream) for kind in KINDS for stream in (False, True)]
        wanted = {each: await ask(client, each[0], stream=each[1], tally=tally) for each in asked}
        tally.longest_gap = 0.0
        until = time.monotonic() + given.seconds
        attack = asyncio.ensure_future(disturb(server, given, draw, tally))
        await asyncio.gather(*(worker(client, wanted, until, tally) for _ in range(given.streams)))
        attack.cancel()
        await asyncio.gather(attack, return_exceptions=True)
    return tally


def main() -> int:
    """Exit code 1 if any answer was wrong or an error."""
    parser = argparse.ArgumentParser(prog="scripts/chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="for how long (default: %(default)s)")
    parser.add_argument("--streams", type=int, default=16, help="requests at a time (default: %(default)s)")
    parser.add_argument("--every", type=float, default=5.0, help="mean seconds between two attacks")
    parser.add_argument("--stops", type=float, default=0.2, help="share of attacks that stop an engine")
    parser.add_argument("--seed", type=int, default=0, help="of the attacks")
    parser.add_argument("--api-server-count", type=int, default=1)
    parser.add_argument("--data-parallel-size", type=int, default=1)
    given = parser.parse_args()
    counts = ("--api-server-count", str(given.api_server_count), "--data-parallel-size", str(given.data_parallel_size))
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with RunningServer((*FLAGS, *counts), log=log) as server:
            tally = asyncio.run(run(server, given))
            metrics = httpx.get(f"{server.base_url}/metrics", timeout=60).text
        if tally.errors or tally.wrong:
            sys.stderr.write(log.read_text(encoding="utf-8", errors="replace")[-4000:])
    resumed = sum(
        float(line.split()[-1]) for line in metrics.splitlines() if line.startswith("jaxllm:requests_resumed_total")
    )
    print(
        f"{tally.answers} answers, {len(tally.wrong)} wrong, {len(tally.errors)} errors; "
        f"{dict(tally.done_to_engines)}, {resumed:.0f} requests resumed, longest gap {tally.longest_gap:.1f} s"
    )
    for each in (tally.wrong + tally.errors)[:10]:
        print(each[:2000])
    return 1 if tally.wrong or tally.errors else 0


if __name__ == "__main__":
    sys.exit(main())
