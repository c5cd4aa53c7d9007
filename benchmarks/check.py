"""Compares with the last accepted run: counters that no machine changes, and ratios of times of alternating runs."""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.shared.counting import counting_calls, counting_transfers
from jaxllm.config import EngineConfig
from jaxllm.engine.engine import Engine
from jaxllm.executor.compile.generation import generation_programs
from jaxllm.executor.resolve import resolve_config
from jaxllm.requests.request import Request
from jaxllm.requests.sampling_params import SamplingParams

ACCEPTED = Path(__file__).parent / "accepted.json"
STEPS = 16
"""Decode steps that are counted, in which every request crosses into a new page once."""
FEW, MANY = 8, 64
REPEATS = 4
"""Times that they are timed together, in each round."""
ROUNDS = 10
"""Each times everything once: a noisy machine is noisy for seconds."""
TOLERANCE = 1.35
"""A ratio may grow by this factor: on a busy machine even the least of many times varies."""

Figures = dict[str, float]


def make_engine(**options: object) -> Engine:
    """The demo model, compiled for the shapes that are met."""
    fixed = {"model": "demo", "max_num_seqs": MANY, "max_num_batched_tokens": MANY, "enforce_eager": True}
    return Engine.from_config(EngineConfig.from_options({**fixed, **options}))


def add(engine: Engine, count: int, *, prompt_tokens: int = 8, max_tokens: int = 64, first: int = 0) -> None:
    """Queue greedy requests of different prompts, the `first` of up to 400 and those after it."""
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    for index in range(count):
        prompt = (np.arange(prompt_tokens) * 7 + first + index).astype(np.int32) % 500 + 5
        engine.add_request(Request(request_id=f"{index}", prompt_token_ids=prompt, params=params))


def until_decoding(engine: Engine, count: int) -> None:
    """Step until every request has a token, and twice more, so that the steps under way are decodes."""
    waiting = {f"{index}" for index in range(count)}
    while waiting:
        waiting -= {output.request_id for output in engine.step()}
    engine.step()
    engine.step()


def finish(engine: Engine) -> None:
    """Abort everything."""
    engine.abort_request([f"{index}" for index in range(MANY)])
    while engine.has_unfinished_requests():
        engine.step()


def count(engine: Engine) -> Figures:
    """All counters, per step of decoding unless they say otherwise."""
    # The first time shapes are met and compiled, some of them in steps that are counted.
    _count(engine)
    return _count(engine)


def _count(engine: Engine) -> Figures:
    engine.reset_prefix_cache()
    programs = generation_programs(resolve_config(EngineConfig()), num_pages=64).programs
    figures: Figures = {"executables of the default engine": len(programs)}
    # Never the same prompt again: whether its pages are then found shared would depend on every last bit.
    for first, running in ((0, FEW), (100, MANY)):
        add(engine, running, first=first)
        until_decoding(engine, running)
        with counting_transfers() as moved:
            for _ in range(STEPS):
                engine.step()
        with counting_calls() as called:
            for _ in range(STEPS):
                engine.step()
        finish(engine)
        figures |= {f"{name}, {running} running": number / STEPS for name, number in sorted(moved.items())}
        figures[f"Python calls, {running} running"] = sum(called.values()) / STEPS
    with counting_transfers() as moved, counting_calls() as called:
        add(engine, MANY, max_tokens=2, first=200)
        while engine.has_unfinished_requests():
            engine.step()
    figures["Python calls per request, admitted to finished"] = sum(called.values()) / MANY
    figures["executables called to admit and finish 64"] = moved["executables called"]
    figures["compilations after warm-up"] = engine.runner.watch.count
    return figures


def _least(work: Callable[[], object], repeat: int = 20) -> float:
    """Seconds of the fastest run: other work on the machine only ever adds."""
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def _decode_seconds(engine: Engine, running: int, prompt_tokens: int = 8) -> float:
    add(engine, running, prompt_tokens=prompt_tokens, max_tokens=STEPS * (REPEATS + 1))
    until_decoding(engine, running)
    # Alone, a step may only fetch what was computed while nobody looked.
    least = _least(lambda: [engine.step() for _ in range(STEPS)], REPEATS) / STEPS
    finish(engine)
    return least


def _least_in_turn(works: Mapping[str, Callable[[], float]]) -> Figures:
    """The least of what each gives."""
    rounds = [{name: work() for name, work in works.items()} for _ in range(ROUNDS)]
    return {name: min(each[name] for each in rounds) for name in works}


def _prompt_seconds(engine: Engine, tokens: int) -> float:
    def run() -> None:
        add(engine, 1, prompt_tokens=tokens, max_tokens=1)
        while engine.has_unfinished_requests():
            engine.step()

    return _least(run, REPEATS)


_product = jax.jit(jnp.matmul)


def _yardstick() -> float:
    """Seconds of a fixed matrix product on the device: what tells a slower machine from a slower engine."""
    left, right = jnp.ones((256, 1024), jnp.float32), jnp.ones((1024, 1024), jnp.float32)
    return _least(lambda: _product(left, right).block_until_ready(), 20)


def measure() -> Figures:
    """Ratios of times: each is of one run, so that the machine's speed cancels."""
    engine = make_engine(max_num_batched_tokens=512, enable_prefix_caching=False)
    waiting = make_engine(max_num_batched_tokens=512, enable_prefix_caching=False, async_scheduling=False)
    seconds = _least_in_turn(
        {
            "one": lambda: _decode_seconds(engine, 1),
            "few": lambda: _decode_seconds(engine, FEW),
            "many": lambda: _decode_seconds(engine, MANY),
            "many, waiting": lambda: _decode_seconds(waiting, MANY),
            "few, long": lambda: _decode_seconds(engine, FEW, 1000),
            "prompt": lambda: _prompt_seconds(engine, 512),
            "yardstick": _yardstick,
        }
    )
    ratios = {
        "decode of 1 over a matrix product": seconds["one"] / seconds["yardstick"],
        "decode of 8 over 1": seconds["few"] / seconds["one"],
        "decode of 64 over 1": seconds["many"] / seconds["one"],
        "decode of 8 over 1,000 tokens over 8 tokens": seconds["few, long"] / seconds["few"],
        "prompt of 512 over decode of 64": seconds["prompt"] / seconds["many"],
        "asynchronous over waiting, decode of 64": seconds["many"] / seconds["many, waiting"],
    }
    engine.close()
    waiting.close()
    return ratios


def worse(accepted: Mapping[str, float], found: Mapping[str, float], tolerance: float = 1.0) -> list[str]:
    """Every figure that grew by more than the tolerance or that nobody accepted, as a line of text."""
    lines = []
    for name, value in found.items():
        if name not in accepted:
            lines.append(f"{name}: {value:g}, and nothing was accepted")
        elif value > accepted[name] * tolerance + 1e-9:
            lines.append(f"{name}: {value:g} instead of {accepted[name]:g}")
    lines += [f"{name}: not counted any more" for name in accepted if name not in found]
    return lines


def _show(title: str, accepted: Mapping[str, float], found: Mapping[str, float]) -> None:
    print(f"{title:56}{'accepted':>12}{'found':>12}")
    for name, value in found.items():
        known = f"{accepted[name]:12.3f}" if name in accepted else f"{'-':>12}"
        print(f"  {name:54}{known}{value:12.3f}")


def counters() -> Figures:
    """The counters of this version."""
    engine = make_engine(optimization_level=0)
    try:
        return count(engine)
    finally:
        engine.close()


def main(arguments: Iterable[str] | None = None) -> int:
    """Compare, and return 1 if something got worse."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--counters", action="store_true", help="only what does not depend on the machine")
    parser.add_argument("--accept", action="store_true", help="write what is found as accepted")
    options = parser.parse_args(None if arguments is None else list(arguments))
    accepted: dict[str, Figures] = json.loads(ACCEPTED.read_text()) if ACCEPTED.exists() else {}
    found = {"counters": counters()}
    if not options.counters:
        found["ratios"] = measure()
    for title, figures in found.items():
        _show(title, accepted.get(title, {}), figures)
    if options.accept:
        ACCEPTED.write_text(json.dumps({**accepted, **found}, indent=1) + "\n")
        return 0
    tolerances = {"counters": 1.0, "ratios": TOLERANCE}
    lines = [
        line for title, figures in found.items() for line in worse(accepted.get(title, {}), figures, tolerances[title])
    ]
    sys.stderr.writelines(f"worse: {line}\n" for line in lines)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
