"""How much sooner a prompt is answered whose pages come from host memory, or from files, than one that is computed.

    scripts/bench host_tier [--tokens 8192] [--repeats 3] [--disk FOLDER [--decode 8]] [--option NAME=VALUE ...]

A model of 125 M parameters with random weights, and so few pages that one prompt takes the place of another. Each
prompt is sent twice: it is computed, and then it comes from the host. With a folder on a disk, another engine is
started then, which finds the prompts in files; what the system keeps of these in memory is dropped before. A single
prompt stays on the device, and comes from files alone. With --decode, the steps of another request are timed so often
alone, and while a prompt's pages come from files, alternately. Prints seconds to the first token, and the measurement
by which the engine decides whether a host tier pays.
"""

import argparse
import json
import logging
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
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


def decode_seconds(engine: Engine, name: str, prompt: np.ndarray | None, steps: int = 24) -> list[float]:
    """Seconds of steps that decode one request alone; pages of the prompt come meanwhile, if there is one."""
    stream = SamplingParams(max_tokens=steps + 8, ignore_eos=True)
    tokens = np.arange(5, 21, dtype=np.int32)
    engine.add_request(Request(request_id=f"stream {name}", prompt_token_ids=tokens, params=stream))
    for _ in range(4):
        engine.step()
    if prompt is not None:
        once = SamplingParams(max_tokens=1)
        engine.add_request(Request(request_id=f"prompt {name}", prompt_token_ids=prompt, params=once))
    seconds = []
    while engine.has_unfinished_requests():
        engine.step()
        stats = engine.stats()
        is_copying = prompt is None or stats.num_deferred > 0
        if stats.num_rows == stats.num_tokens == 1 and is_copying:
            seconds.append(stats.step_seconds)
    return seconds


def compare_decodes(engine: Engine, prompt: np.ndarray, repeats: int) -> dict[str, float]:
    """Milliseconds of a step alone, and while pages come."""
    alone, meanwhile = list[float](), list[float]()
    for index in range(repeats):
        assert engine.scheduler.reset_prefix_cache()  # all but files
        alone += decode_seconds(engine, f"alone {index}", None)
        meanwhile += decode_seconds(engine, f"meanwhile {index}", prompt)
    return {
        "steps": len(meanwhile),
        "alone_ms": 1000 * statistics.median(alone),
        "meanwhile_ms": 1000 * statistics.median(meanwhile),
        "slower": statistics.median(meanwhile) / statistics.median(alone) - 1,
        "slower_at_best": min(meanwhile) / min(alone) - 1,
        "slower_by_quartile": float(np.quantile(meanwhile, 0.25) / np.quantile(alone, 0.25)) - 1,
    }


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
                result |= compare_decodes(engine, prompts[0], options.decode)
            engine.close()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
