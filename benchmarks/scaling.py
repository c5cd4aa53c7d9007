"""How step time grows with batch, context, prompt, vocabulary and number of KV pages; plots it alongside the work."""

import argparse
import json
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.shared.reference_model import HIDDEN, VOCAB_SIZE, layer_parameters, write_reference_model
from benchmarks.shared.scaling_plot import plot
from jaxllm.config import EngineConfig
from jaxllm.engine.engine import Engine
from jaxllm.requests.request import Request
from jaxllm.requests.sampling_params import SamplingParams

BATCHES = (1, 2, 4, 8, 16, 32, 64)
CONTEXTS = (64, 256, 1024, 3000)
PROMPTS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4000)
VOCABULARIES = (1_000, 8_000, 32_000, 128_000)
PAGES = (65, 1025, 16_385)
LONGEST = 4096
CHUNK = 128
REQUESTS = 8
"""Running requests where their number is not what changes."""
SHORT = 64
"""Tokens of context where that is not what changes."""


Clock = Callable[[], float]

CLOCKS: dict[str, Clock] = {"wall": time.perf_counter, "cpu": time.process_time}
"""CPU time is that of all threads: of use where the device is the CPU, and other programs run on it."""


@dataclass(frozen=True)
class Sweep:
    """One quantity varied: milliseconds, and the arithmetic that the answers need, at each value."""

    name: str
    unit: str
    values: list[int]
    milliseconds: list[float]
    work: list[float]
    """Multiply-adds; for the number of KV pages a constant."""

    @property
    def slope(self) -> float:
        """Growth at the upper end: exponent of time in the value, from the three largest values."""
        return _exponent(self.values, self.milliseconds)

    @property
    def work_slope(self) -> float:
        """The same of the work."""
        return _exponent(self.values, self.work)


def _exponent(values: Sequence[int], times: Sequence[float]) -> float:
    return (math.log(times[-1]) - math.log(times[-3])) / (math.log(values[-1]) - math.log(values[-3]))


@contextmanager
def engine_of(layers: int, vocab_size: int = VOCAB_SIZE, **options: object) -> Iterator[Engine]:
    """An engine on a model of random weights, in which a compilation after warm-up is an error."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = write_reference_model(
            Path(scratch), layers=layers, vocab_size=vocab_size, max_position_embeddings=LONGEST
        )
        fixed = {"model": str(folder), "load_format": "dummy", "enable_prefix_caching": False}
        # Shapes are compiled when they are met, and few are; each is met once before it is measured.
        fixed["enforce_eager"] = True
        engine = Engine.from_config(EngineConfig.from_options({**fixed, "strict_compilation": True, **options}))
    try:
        yield engine
    finally:
        engine.close()


def add(engine: Engine, count: int, tokens: int, max_tokens: int) -> list[str]:
    """Queue requests of random prompts; their names."""
    rng = np.random.default_rng(0)
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    for index in range(count):
        prompt = rng.integers(3, engine.info.vocab_size, size=tokens).astype(np.int32)
        engine.add_request(Request(request_id=str(index), prompt_token_ids=prompt, params=params))
    return [str(index) for index in range(count)]


def decode_ms(engine: Engine, clock: Clock, requests: int, context: int, repeat: int) -> float:
    """Milliseconds of a step in which all requests decode: the least of `repeat` groups of four steps.

    The least, because other work on the machine only ever adds.
    """
    # Those that come first decode until the last has come.
    names = add(engine, requests, context, max_tokens=LONGEST - context)
    waiting = set(names)
    while waiting:
        waiting -= {output.request_id for output in engine.step()}
    engine.step()
    times = []
    for _ in range(repeat):
        start = clock()
        for _ in range(4):
            outputs = engine.step()
            assert len(outputs) == requests
        times.append((clock() - start) / 4)
    _end(engine, names)
    return min(times) * 1e3


def prompt_ms(engine: Engine, clock: Clock, tokens: int, repeat: int) -> float:
    """Milliseconds to the first token of one prompt: the least of `repeat`."""
    times = []
    for _ in range(repeat + 1):
        names = add(engine, 1, tokens, max_tokens=1)
        start = clock()
        while not engine.step():
            pass
        times.append(clock() - start)
        _end(engine, names)
    return min(times[1:]) * 1e3


def _end(engine: Engine, names: Sequence[str]) -> None:
    engine.abort_request(names)
    while engine.has_unfinished_requests():
        engine.step()


def multiply_adds(layers: int, tokens: int, contexts: float, rows: int, vocab_size: int = VOCAB_SIZE) -> float:
    """Of a step: `tokens` through the layers, `contexts` pairs of query and key in all, logits of `rows`."""
    attention = 2.0 * contexts * layers * HIDDEN
    return layers * layer_parameters() * tokens + attention + rows * HIDDEN * vocab_size


def sweep(
    name: str, unit: str, values: Sequence[int], measure: Callable[[int], float], work: Callable[[int], float]
) -> Sweep:
    """Measure at every value, reporting as it goes."""
    times = []
    for value in values:
        times.append(measure(value))
        print(f"{name} {value}: {times[-1]:.2f} ms", flush=True)
    return Sweep(name, unit, list(values), times, [work(value) for value in values])


def measure_all(layers: int, repeat: int, clock: Clock) -> list[Sweep]:
    """All five sweeps."""
    sweeps = []
    pages = 1 + REQUESTS * LONGEST // 16 + 2 * BATCHES[-1] * SHORT // 16
    shared = {"max_num_seqs": BATCHES[-1], "max_num_batched_tokens": CHUNK, "num_gpu_blocks_override": pages}
    with engine_of(layers, **shared) as engine:
        sweeps.append(
            sweep(
                "batch", "running requests, decode step", BATCHES,
                lambda count: decode_ms(engine, clock, count, SHORT, repeat),
                lambda count: multiply_adds(layers, count, count * SHORT, count),
            )
        )  # fmt: skip
        sweeps.append(
            sweep(
                "context", f"tokens of each of {REQUESTS} requests, decode step", CONTEXTS,
                lambda context: decode_ms(engine, clock, REQUESTS, context, repeat),
                lambda context: multiply_adds(layers, REQUESTS, REQUESTS * context, REQUESTS),
            )
        )  # fmt: skip
        sweeps.append(
            sweep(
                "prompt", "prompt tokens, time to the first token", PROMPTS,
                lambda tokens: prompt_ms(engine, clock, tokens, max(repeat // 2, 2)),
                lambda tokens: multiply_adds(layers, tokens, tokens * tokens / 2, 1),
            )
        )  # fmt: skip
    small = {"max_num_seqs": REQUESTS, "max_num_batched_tokens": REQUESTS, "max_model_len": 256}

    def of_vocabulary(size: int) -> float:
        with engine_of(layers, vocab_size=size, num_gpu_blocks_override=PAGES[1], **small) as engine:
            return decode_ms(engine, clock, REQUESTS, SHORT, repeat)

    def of_pages(count: int) -> float:
        with engine_of(layers, num_gpu_blocks_override=count, **small) as engine:
            return decode_ms(engine, clock, REQUESTS, 16, repeat)

    sweeps.append(
        sweep(
            "vocabulary", f"tokens in the vocabulary, decode step of {REQUESTS}", VOCABULARIES, of_vocabulary,
            lambda size: multiply_adds(layers, REQUESTS, REQUESTS * SHORT, REQUESTS, size),
        )
    )  # fmt: skip
    sweeps.append(sweep("pages", f"KV pages, decode step of {REQUESTS}", PAGES, of_pages, lambda count: 1.0))
    return sweeps


def main(arguments: Sequence[str] | None = None) -> None:
    """Print slopes; write figures as JSON and as a picture where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--layers", type=int, default=2, help="layers of the model, which has the width of 125 M")
    parser.add_argument("--repeat", type=int, default=8, help="groups of steps; the least time counts")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="wall time, or CPU time of all threads")
    parser.add_argument("--png", help="file for the plots")
    parser.add_argument("--save", help="file for the figures, as JSON")
    parser.add_argument("--load", help="file with figures: plot these instead of measuring")
    options = parser.parse_args(arguments)
    if options.load:
        sweeps = [Sweep(**figures) for figures in json.loads(Path(options.load).read_text())]
    else:
        sweeps = measure_all(options.layers, options.repeat, CLOCKS[options.clock])
    if options.save:
        Path(options.save).write_text(json.dumps([asdict(each) for each in sweeps], indent=1) + "\n")
    if options.png:
        plot(sweeps, Path(options.png))
    print(f"{'':12}{'smallest ms':>12}{'largest ms':>12}{'slope':>8}{'of work':>8}")
    for each in sweeps:
        print(
            f"{each.name:12}{each.milliseconds[0]:12.2f}{each.milliseconds[-1]:12.2f}{each.slope:8.2f}"
            f"{each.work_slope:8.2f}"
        )


if __name__ == "__main__":
    main()
