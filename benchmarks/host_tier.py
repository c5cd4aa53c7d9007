"""How much sooner a prompt is answered whose pages come from host memory, or from files, than one that is computed.

    scripts/bench host_tier [--tokens 8192] [--repeats 3] [--disk FOLDER [--decode 8]] [--option NAME=VALUE ...]

A model of 125 M parameters with random weights, and so few pages that one prompt takes the place of another. Each
prompt is sent twice: it is computed, and then it comes from the host. With a folder on a disk, another engine is
started then, which finds the prompts in files; what the system keeps of these in memory is dropped before. A single
prompt stays on the device, and comes from files alone. With --decode, the steps of another request are timed so often
alone, and while a prompt's pages come from the host, and from files, alternately: by the clock, and by the processor
time of the process. Prints seconds to the first token, and the measurement by which the engine decides whether a host
tier pays.
"""

import argparse
import json
import logging
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.shared.reference_model import write_reference_model
from jaxllm.config import EngineConfig
from jaxllm.engine.engine import Engine
from jaxllm.requests.request import Request
from jaxllm.requests.sampling_params import SamplingParams

PAGE = 16


def make_engine(model: Path, tokens: int, options: dict[str, Any]) -> Engine:
    """An engine with pages for one prompt and a little more."""
    pages = -(-tokens // PAGE)
    fixed: dict[str, Any] = {
        "model": str(model), "load_format": "dummy", "max_model_len": tokens + 64, "max_num_seqs": 2,
        "block_size": PAGE, "num_gpu_blocks_override": pages + pages // 8, "kv_offloading_size": 4,
    }  # fmt: skip
    return Engine.from_config(EngineConfig.from_options({**fixed, **options}))


def first_token(engine: Engine, name: str, prompt: np.ndarray) -> tuple[float, int]:
    """Seconds until a prompt's first token, and the token."""
    start = time.perf_counter()
    engine.add_request(Request(request_id=name, prompt_token_ids=prompt, params=SamplingParams(max_tokens=1)))
    found: list[int] = []
    while engine.has_unfinished_requests():
        found += [token for output in engine.step() for token in output.token_ids]
    return time.perf_counter() - start, found[0]


def found_again(engine: Engine, prompts: Sequence[np.ndarray], name: str) -> list[float]:
    """Seconds until the first token of each prompt, whose pages come from the host or from files."""
    found = []
    for index, prompt in enumerate(prompts):
        before = engine.stats().offload.hits
        found.append(first_token(engine, f"{name} {index}", prompt)[0])
        assert engine.stats().offload.hits > before, "nothing came from the host"
    return found


@dataclass
class Steps:
    """Steps that decode one request: seconds and processor seconds of each, and of the whole."""

    wall: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    """Seconds that prompts have waited for their pages meanwhile."""

    def compared(self, alone: "Steps") -> dict[str, float]:
        """How much slower these are than those of a request alone: the mean, quantiles, and by processor time."""
        wall, others = np.array(self.wall), np.array(alone.wall)
        return {
            "steps": len(wall),
            "alone_ms": 1000 * float(np.median(others)),
            "meanwhile_ms": 1000 * float(np.median(wall)),
            "alone_processor_ms": 1000 * sum(alone.processor) / len(others),
            "slower": float(wall.mean() / others.mean()) - 1,
            "slower_at_median": float(np.median(wall) / np.median(others)) - 1,
            "slower_by_quartile": float(np.quantile(wall, 0.25) / np.quantile(others, 0.25)) - 1,
            "slower_by_processor": sum(self.processor) / len(wall) * len(others) / sum(alone.processor) - 1,
            "wait_seconds": statistics.median(self.waits),
        }


def time_decodes(engine: Engine, prompt: np.ndarray | None, count: int, into: Steps) -> int:
    """Time `count` steps of a request alone, or those in which the pages of a prompt come. Returns how many."""
    stream = SamplingParams(max_tokens=engine.info.max_model_len - 16, ignore_eos=True)
    tokens = np.arange(5, 13, dtype=np.int32)
    engine.add_request(Request(request_id="stream", prompt_token_ids=tokens, params=stream))
    for _ in range(8):
        engine.step()
    began = time.perf_counter()
    if prompt is not None:
        once = SamplingParams(max_tokens=1)
        engine.add_request(Request(request_id="prompt", prompt_token_ids=prompt, params=once))
    done = 0
    while done < count:
        start, used = time.perf_counter(), time.process_time()
        engine.step()
        stats = engine.stats()
        if prompt is not None and not stats.num_deferred:
            break
        into.wall.append(time.perf_counter() - start)
        into.processor.append(time.process_time() - used)
        done += 1
    if prompt is not None:
        into.waits.append(time.perf_counter() - began)
    engine.abort_request(["stream", "prompt"])
    while engine.has_unfinished_requests():
        engine.step()
    while engine.copy_while_idle():
        time.sleep(0.01)
    return done


def compare_decodes(engine: Engine, prompts: Sequence[np.ndarray], repeats: int, *, resets: bool) -> dict[str, float]:
    """Steps alone, and while pages come, by turns; with `resets`, they come from files."""
    alone, meanwhile = Steps(), Steps()
    for index in range(repeats):
        if resets:
            assert engine.scheduler.reset_prefix_cache()  # all but files
        count = time_decodes(engine, prompts[index % len(prompts)], engine.info.max_model_len - 32, meanwhile)
        time_decodes(engine, None, max(count, 8), alone)
    return meanwhile.compared(alone)


def drop_from_memory(folder: Path) -> int:
    """Write files to the disk, and have the system forget them. Returns their bytes."""
    size = 0
    for path in folder.rglob("*.*"):
        if path.is_file():
            file = os.open(path, os.O_RDONLY)
            os.fsync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            size += os.fstat(file).st_size
            os.close(file)
    return size


def wait_for_files(engine: Engine) -> None:
    """Until all copies are written."""
    while engine.copy_while_idle():
        time.sleep(0.05)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print seconds as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--disk", type=Path, help="folder for files")
    parser.add_argument("--decode", type=int, default=0, help="how often to time decodes beside copies")
    parser.add_argument("--option", action="append", default=[], help="of the engine: NAME=VALUE, the value as JSON")
    options = parser.parse_args(arguments)
    given = {name: json.loads(value) for name, _, value in (each.partition("=") for each in options.option)}
    logging.basicConfig(level=logging.INFO)
    if options.disk is not None:
        given["kv_offloading_path"] = str(options.disk)
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as scratch:
        model = write_reference_model(Path(scratch) / "model", max_position_embeddings=options.tokens + 64)
        engine = make_engine(model, options.tokens, given)
        prompts = [rng.integers(3, 1000, options.tokens).astype(np.int32) for _ in range(options.repeats)]
        computed = [first_token(engine, f"computed {index}", prompt)[0] for index, prompt in enumerate(prompts)]
        wait_for_files(engine)
        result: dict[str, float] = {"tokens": options.tokens, "computed_seconds": statistics.median(computed)}
        if options.repeats > 1:
            found = found_again(engine, prompts, "found")
            result["found_seconds"] = statistics.median(found)
            result["ratio"] = statistics.median(computed) / statistics.median(found)
            if options.decode:
                result |= compare_decodes(engine, prompts, options.decode, resets=False)
        result["dropped"] = engine.stats().offload.dropped
        wait_for_files(engine)
        engine.close()
        if options.disk is not None:
            result["file_bytes"] = drop_from_memory(options.disk)
            engine = make_engine(model, options.tokens, given)
            from_files = found_again(engine, prompts, "from files")
            result["from_files_seconds"] = statistics.median(from_files)
            result["ratio_of_files"] = statistics.median(computed) / statistics.median(from_files)
            if options.decode:
                compared = compare_decodes(engine, prompts, options.decode, resets=True)
                result |= {f"from_files_{name}": value for name, value in compared.items()}
            engine.close()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
