"""Gaps between the tokens of running streams while long prompts arrive: one server, and a fleet on the same cores.

    scripts/bench disaggregation [--cores 2] [--prompt 1024] [--streams 4] [--seconds 30] [--rounds 3] [--fleet 1:1]

A model of 125 M parameters with random weights. Some clients read one stream after another; one client sends one long
prompt after another, and reads two tokens of each. Both servers are up all the time, and have the load in turns, so
that what else the machine does hits both. Prints quantiles of the gaps, how long prompts took, and what came out.
"""

import argparse
import asyncio
import itertools
import json
import os
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.shared.reference_model import VOCAB_SIZE, write_reference_model, write_reference_tokenizer
from benchmarks.shared.running_server import RunningServer
from jaxllm.serving.bench.client import LoadTarget, ask, open_session
from jaxllm.serving.bench.datasets.request import LoadRequest

_SHORT, _OUTPUT = 16, 96
"""Tokens of the prompt and of the output of each stream."""


@dataclass
class Measured:
    """What the clients of one server saw, in seconds and tokens."""

    gaps: list[float] = field(default_factory=list)
    prompts: list[float] = field(default_factory=list)
    tokens: int = 0
    seconds: float = 0.0
    errors: list[str] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        """Milliseconds of gaps, seconds until the first token of a long prompt, and both per second."""
        quantiles = {f"p{q}": round(1000 * float(np.quantile(self.gaps, q / 100)), 1) for q in (50, 90, 99)}
        return {
            "gaps": len(self.gaps),
            "gap_ms": {**quantiles, "max": round(1000 * max(self.gaps), 1)},
            "prompt_seconds": round(float(np.median(self.prompts)), 2) if self.prompts else None,
            "prompts_per_minute": round(60 * len(self.prompts) / self.seconds, 1),
            "tokens_per_second": round(self.tokens / self.seconds, 1),
            "errors": self.errors[:3],
        }


async def load(url: str, arguments: argparse.Namespace, rng: np.random.Generator, into: Measured) -> None:
    """Streams and long prompts for so long; nothing counts that ends later."""
    target = LoadTarget(url=f"{url}/v1/completions", model="reference", extra={"ignore_eos": True, "temperature": 0})
    end = time.monotonic() + arguments.seconds

    def request(length: int, tokens: int) -> LoadRequest:
        return LoadRequest(prompt=rng.integers(300, VOCAB_SIZE, length).tolist(), output_tokens=tokens)

    async def repeat(length: int, tokens: int) -> None:
        while time.monotonic() < end:
            answer = await ask(session, target, request(length, tokens))
            if answer.error:
                into.errors.append(answer.error)
            elif length == _SHORT:
                into.gaps += answer.itls
                into.tokens += answer.output_tokens
            elif arguments.prompt:
                into.prompts.append(answer.ttft)

    async with open_session(target) as session:
        began = time.monotonic()
        clients = [repeat(_SHORT, _OUTPUT) for _ in range(arguments.streams)]
        if arguments.prompt:
            clients.append(repeat(arguments.prompt, 2))
        await asyncio.gather(*clients)
        into.seconds += time.monotonic() - began


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=1024, help="tokens of a long prompt; 0: none are sent")
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=30.0, help="of each round of each server")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--fleet", default="1:1")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--option", nargs="*", default=[], metavar="NAME=VALUE", help="of both servers")
    arguments = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))[: arguments.cores]
    os.sched_setaffinity(0, cores)
    further = list(itertools.chain.from_iterable(f"--{each}".split("=", 1) for each in arguments.option))
    with tempfile.TemporaryDirectory() as folder:
        model = write_reference_model(Path(folder) / "reference", layers=arguments.layers)
        write_reference_tokenizer(model)
        flags = [
            *(str(model), "--load-format", "dummy", "--served-model-name", "reference", "--max-num-seqs", "16"),
            *("--max-model-len", str(2 * max(arguments.prompt, 512)), "--disable-log-stats", *further),
        ]
        one = RunningServer(flags, log=Path(folder) / "one.log")
        with one:
            fleet = RunningServer([*flags, "--disaggregate", arguments.fleet], log=Path(folder) / "fleet.log")
            with fleet:
                measured = {"one server": Measured(), f"fleet {arguments.fleet}": Measured()}
                rng = np.random.default_rng(0)
                for url in (one.base_url, fleet.base_url):
                    warm = argparse.Namespace(**{**vars(arguments), "seconds": 3.0})
                    asyncio.run(load(url, warm, rng, Measured()))
                for number in range(arguments.rounds):
                    both = list(zip((one.base_url, fleet.base_url), measured.values(), strict=True))
                    for url, into in both if number % 2 == 0 else reversed(both):
                        asyncio.run(load(url, arguments, rng, into))
    found = {name: each.summary() for name, each in measured.items()}
    ratios = [each["gap_ms"]["p99"] for each in found.values()]
    print(json.dumps({"cores": cores, **found, "p99_ratio": round(ratios[1] / ratios[0], 3)}, indent=1))


if __name__ == "__main__":
    main()
