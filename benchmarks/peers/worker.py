"""One engine in a process of its own, told on standard input what to run.

    python -m benchmarks.peers.worker ENGINE OPTIONS      ENGINE: jaxllm or vllm; OPTIONS: JSON

`OPTIONS["extra"]` are options of that engine alone. With folders in `OPTIONS["adapters"]`, each request uses the
next of these LoRA adapters.

Each line of input is JSON, `{"workload": {...}, "seed": 1}`; the answer is one line of JSON, a `Measurement`. The first
line it prints says how long the start took. Other output of the engine goes to standard error. Runs under either
interpreter.
"""

# mypy: disable-error-code="import-not-found"
import dataclasses
import itertools
import json
import os
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from benchmarks.peers.workloads import SteppedEngine, Workload, measure

if TYPE_CHECKING:
    from jaxllm.engine.engine import Engine


class Jaxllm:
    """Our engine, in this process."""

    def __init__(self, options: dict[str, Any]) -> None:
        from jaxllm import SamplingParams
        from jaxllm.config import EngineConfig
        from jaxllm.load import load_engine
        from jaxllm.requests.lora_request import LoRARequest

        self._params = SamplingParams
        engine = load_engine(
            EngineConfig.from_options(
                {
                    "model": options["model"],
                    "load_format": options.get("load_format", "dummy"),
                    "dtype": options["dtype"],
                    "max_model_len": options["max_model_len"],
                    "max_num_seqs": options["max_num_seqs"],
                    "enable_prefix_caching": options["prefix_caching"],
                    "kv_cache_memory_bytes": options["kv_bytes"],
                    "strict_compilation": True,
                    **options.get("extra", {}),
                }
            )
        )
        self._engine = cast("Engine", engine)
        self._counts: dict[str, int] = {}
        adapters = options.get("adapters", [])
        self._adapters = itertools.cycle(
            [LoRARequest(f"a{i}", i + 1, path) for i, path in enumerate(adapters)] or [None]
        )

    def add(self, request_id: str, prompt: list[int], output_tokens: int) -> None:
        """See `SteppedEngine`."""
        import numpy as np

        from jaxllm.requests.request import Request

        params = self._params(temperature=0.0, max_tokens=output_tokens, ignore_eos=True)
        self._counts[request_id] = 0
        request = Request(request_id=request_id, prompt_token_ids=np.array(prompt, np.int32), params=params)
        request.lora_request = next(self._adapters)
        self._engine.add_request(request)

    def step(self) -> Sequence[tuple[str, int]]:
        """See `SteppedEngine`."""
        news = []
        for output in self._engine.step():
            self._counts[output.request_id] += len(output.token_ids)
            news.append((output.request_id, self._counts[output.request_id]))
        return news

    def busy(self) -> bool:
        """See `SteppedEngine`."""
        return self._engine.has_unfinished_requests()


class Vllm:
    """vLLM's engine, in this process."""

    def __init__(self, options: dict[str, Any]) -> None:
        os.environ.update(
            HF_HUB_OFFLINE="1",
            VLLM_NO_USAGE_STATS="1",
            VLLM_ENABLE_V1_MULTIPROCESSING="0",
            VLLM_CPU_KVCACHE_SPACE=str(max(1, options["kv_bytes"] // 2**30)),
            VLLM_CPU_OMP_THREADS_BIND=f"0-{(os.cpu_count() or 1) - 1}",
        )
        from vllm import LLM, SamplingParams
        from vllm.lora.request import LoRARequest

        self._params = SamplingParams
        adapters = options.get("adapters", [])
        self._adapters = itertools.cycle(
            [LoRARequest(f"a{i}", i + 1, path) for i, path in enumerate(adapters)] or [None]
        )
        self._engine = LLM(
            model=options["model"],
            load_format=options.get("load_format", "dummy"),
            dtype=options["dtype"],
            skip_tokenizer_init=True,
            max_model_len=options["max_model_len"],
            max_num_seqs=options["max_num_seqs"],
            enable_prefix_caching=options["prefix_caching"],
            **options.get("extra", {}),
        ).llm_engine

    def add(self, request_id: str, prompt: list[int], output_tokens: int) -> None:
        """See `SteppedEngine`."""
        params = self._params(temperature=0.0, max_tokens=output_tokens, ignore_eos=True, detokenize=False)
        adapter = next(self._adapters)
        self._engine.add_request(request_id, {"prompt_token_ids": prompt}, params, lora_request=adapter)

    def step(self) -> Sequence[tuple[str, int]]:
        """See `SteppedEngine`."""
        return [(output.request_id, len(output.outputs[0].token_ids)) for output in self._engine.step()]

    def busy(self) -> bool:
        """See `SteppedEngine`."""
        return bool(self._engine.has_unfinished_requests())


ENGINES: dict[str, type[Jaxllm] | type[Vllm]] = {"jaxllm": Jaxllm, "vllm": Vllm}


def main() -> None:
    """Start, say how long it took, and serve."""
    name, options = sys.argv[1], json.loads(sys.argv[2])
    # What the engine prints must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    start = time.perf_counter()
    engine: SteppedEngine = ENGINES[name](options)
    print(json.dumps({"startup_s": time.perf_counter() - start}), file=answers, flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        result = measure(engine, Workload(**order["workload"]), options["vocab_size"], order["seed"])
        print(json.dumps(dataclasses.asdict(result)), file=answers, flush=True)


if __name__ == "__main__":
    main()
