"""What the server costs over the engine alone: throughput, time to first token, and many streams for a minute."""

import argparse
import asyncio
import json
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from aiohttp import ClientSession

from benchmarks.offline import Workload
from benchmarks.offline import run as run_offline
from benchmarks.shared.reference_model import VOCAB_SIZE, write_reference_model, write_reference_tokenizer
from benchmarks.shared.running_server import RunningServer
from jaxllm.config import EngineConfig
from jaxllm.engine.engine import Engine
from jaxllm.serving.bench.client import LoadResult, LoadTarget, ask, open_session
from jaxllm.serving.bench.datasets.request import LoadRequest
from jaxllm.serving.bench.datasets.synthetic import Vocabulary, random_requests
from jaxllm.serving.bench.load import gather_load

MANY = Workload(32, 128, 64)
ONE = Workload(1, 32, 8)


@dataclass(frozen=True)
class Settings:
    """How much to measure. `repeat` counted rounds of each; the streams run for `seconds`."""

    repeat: int
    streams: int
    seconds: float
    layers: int
    engine_flags: dict[str, Any] = field(default_factory=dict)


class Pair:
    """The reference model twice: as an engine in this process, and through a server. They take turns."""

    def __init__(self, scratch: Path, settings: Settings) -> None:
        model = write_reference_model(scratch / "model", layers=settings.layers)
        write_reference_tokenizer(model)
        options = {
            "model": str(model),
            "load_format": "dummy",
            "max_model_len": 1024,
            "enable_prefix_caching": False,
            "strict_compilation": True,
            **settings.engine_flags,
        }
        # The server after the engine: with what that compiled in the cache, it starts at once.
        self.engine = Engine.from_config(EngineConfig.from_options(options))
        self.server = RunningServer(_as_flags(options), log=scratch / "server.log")
        self._model = str(model)
        self._rng = np.random.default_rng(0)

    def offline(self, workload: Workload) -> dict[str, float]:
        """Output tokens per second and TTFT (ms) of the engine alone."""
        return asdict(run_offline(self.engine, workload, self._rng, 0.0))

    def served(self, workload: Workload) -> dict[str, float]:
        """The same of streams."""
        lengths = (workload.prompt_tokens, workload.output_tokens)
        requests = random_requests(
            workload.requests, *lengths, Vocabulary(range(300, VOCAB_SIZE), self._rng), self._rng
        )
        start = time.perf_counter()
        answers = asyncio.run(gather_load(self.target, requests, [0.0] * len(requests)))
        elapsed = time.perf_counter() - start
        _check(answers, workload.output_tokens)
        return {
            "output_tokens_per_s": workload.requests * workload.output_tokens / elapsed,
            "ttft_ms": float(np.median([answer.ttft for answer in answers])) * 1e3,
        }

    @property
    def target(self) -> LoadTarget:
        """Where to send."""
        extra = {"temperature": 0, "ignore_eos": True}
        return LoadTarget(url=f"{self.server.base_url}/v1/completions", model=self._model, extra=extra)


def compare(settings: Settings, scratch: Path) -> dict[str, Any]:
    """Throughput of many requests and TTFT of one, with and without the server; medians over alternating rounds."""
    pair = Pair(scratch, settings)
    with pair.server:
        rounds: dict[str, list[dict[str, float]]] = {}
        for index in range(settings.repeat + 1):
            for name, measure, workload in (
                ("offline", pair.offline, MANY),
                ("server", pair.served, MANY),
            ):
                _note(rounds, f"many {name}", measure(workload), counted=index > 0)
        # Short ones, so that there can be many.
        for index in range(10 * settings.repeat + 1):
            _note(rounds, "one offline", pair.offline(ONE), counted=index > 0)
            _note(rounds, "one server", pair.served(ONE), counted=index > 0)
        cpu = pair.server.cpu_seconds()
    pair.engine.close()
    speed = {name: _median(rounds[f"many {name}"], "output_tokens_per_s") for name in ("offline", "server")}
    first = {name: _median(rounds[f"one {name}"], "ttft_ms") for name in ("offline", "server")}
    return {
        "offline_tokens_per_s": speed["offline"],
        "server_tokens_per_s": speed["server"],
        "server_over_offline": speed["server"] / speed["offline"],
        "offline_ttft_ms": first["offline"],
        "server_ttft_ms": first["server"],
        "added_ttft_ms": first["server"] - first["offline"],
        "server_cpu_s": cpu["server"],
        "engine_cpu_s": cpu["engine"],
    }


def _note(rounds: dict[str, list[dict[str, float]]], name: str, figures: dict[str, float], *, counted: bool) -> None:
    if counted:
        rounds.setdefault(name, []).append(figures)


def _median(rounds: Sequence[dict[str, float]], key: str) -> float:
    return float(np.median([each[key] for each in rounds]))


def many_streams(settings: Settings, scratch: Path) -> dict[str, Any]:
    """`demo` with many streams at once: whether all end, with the tokens of offline generation, in constant memory."""
    options = {"model": "demo", "max_num_seqs": min(settings.streams, 256), **settings.engine_flags}
    requests, expected = _expected(options)
    watch = _Watch()
    with RunningServer(_as_flags(options), log=scratch / "streams.log") as server:
        watch.start(server.memory)
        start = time.perf_counter()
        answers = asyncio.run(_keep_busy(server, requests, settings))
        elapsed = time.perf_counter() - start
        watch.stop()
    wrong = [index for index, answer in answers if answer.token_ids != expected[index]]
    failed = [answer.error for _, answer in answers if answer.error]
    ttfts = [answer.ttft for _, answer in answers]
    return {
        "streams": settings.streams,
        "seconds": elapsed,
        "completed": len(answers) - len(failed),
        "failed": len(failed),
        "different_from_offline": len(wrong),
        "output_tokens_per_s": sum(answer.output_tokens for _, answer in answers) / elapsed,
        "median_ttft_ms": float(np.median(ttfts)) * 1e3,
        **watch.figures(),
        "first_error": next(iter(failed), None),
    }


def _expected(options: dict[str, Any]) -> tuple[list[LoadRequest], list[list[int]]]:
    """Prompts, and the tokens that offline generation continues each with."""
    from jaxllm import LLM, SamplingParams

    rng = np.random.default_rng(0)
    with LLM(**options) as llm:
        size = llm.get_tokenizer().vocab_size
        # Some prompts share a prefix, as in life.
        prefix = rng.integers(10, size, size=40).tolist()
        prompts = [
            [*(prefix if index % 2 else []), *rng.integers(10, size, size=int(rng.integers(4, 60))).tolist()]
            for index in range(64)
        ]
        lengths = [int(length) for length in rng.integers(16, 96, size=len(prompts))]
        params = [SamplingParams(temperature=0, max_tokens=length, ignore_eos=True) for length in lengths]
        outputs = llm.generate(prompts, params, use_tqdm=False)
    requests = [LoadRequest(prompt, length) for prompt, length in zip(prompts, lengths, strict=True)]
    return requests, [list(output.outputs[0].token_ids) for output in outputs]


async def _keep_busy(
    server: RunningServer, requests: Sequence[LoadRequest], settings: Settings
) -> list[tuple[int, LoadResult]]:
    """As many streams as asked for, each followed by the next until the time is over; (prompt, answer) of all."""
    extra = {"temperature": 0, "ignore_eos": True, "return_token_ids": True}
    target = LoadTarget(url=f"{server.base_url}/v1/completions", model="demo", extra=extra)
    end = time.perf_counter() + settings.seconds
    found: list[tuple[int, LoadResult]] = []

    async def one_after_another(session: ClientSession, first: int) -> None:
        index = first
        while time.perf_counter() < end:
            index = (index + 1) % len(requests)
            found.append((index, await ask(session, target, requests[index])))

    async with open_session(target) as session:
        await asyncio.gather(*(one_after_another(session, number * 7) for number in range(settings.streams)))
    return found


class _Watch:
    """Samples memory every second in a thread."""

    def __init__(self) -> None:
        self._samples: list[dict[str, float]] = []
        self._over = threading.Event()

    def start(self, sample: Callable[[], dict[str, float]]) -> None:
        def watch() -> None:
            while not self._over.wait(1.0):
                self._samples.append(sample())

        self._thread = threading.Thread(target=watch, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def figures(self) -> dict[str, float]:
        """Memory after a third of the time and at the end, in MiB: what is needed at first is reached by then."""
        early, late = self._samples[len(self._samples) // 3], self._samples[-1]
        return {
            f"{name}_mib_{when}": sample[name] for when, sample in (("early", early), ("late", late)) for name in sample
        }


def _check(answers: Sequence[LoadResult], tokens: int) -> None:
    for answer in answers:
        if answer.error or answer.output_tokens != tokens:
            raise RuntimeError(f"a request went wrong: {answer.error or answer.output_tokens}")


def _as_flags(options: dict[str, Any]) -> list[str]:
    """Engine options as a command line has them."""
    flags = []
    for name, value in options.items():
        flag = name.replace("_", "-")
        flags += [f"--{'' if value else 'no-'}{flag}"] if isinstance(value, bool) else [f"--{flag}", str(value)]
    return flags


def main(arguments: Sequence[str] | None = None) -> None:
    """Print figures, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--only", choices=("compare", "streams"), help="one half of it")
    parser.add_argument("--repeat", type=int, default=3, help="counted rounds, after one to warm up")
    parser.add_argument("--streams", type=int, default=256, help="streams at once")
    parser.add_argument("--seconds", type=float, default=60.0, help="for how long")
    parser.add_argument("--layers", type=int, default=12, help="of the reference model; less is no result, but a check")
    parser.add_argument("--optimization-level", type=int, default=3, help="how hard XLA tries on CPU, 0 to 3")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args(arguments)
    flags = {"optimization_level": given.optimization_level}
    settings = Settings(given.repeat, given.streams, given.seconds, given.layers, flags)
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        if given.only != "streams":
            results["compare"] = compare(settings, Path(scratch))
        if given.only != "compare":
            results["streams"] = many_streams(settings, Path(scratch))
    if given.json:
        print(json.dumps(results, indent=1))
        return
    for name, figures in results.items():
        print(name)
        for key, value in figures.items():
            print(f"  {key:26} {f'{value:.2f}' if isinstance(value, float) else value}")


if __name__ == "__main__":
    main()
