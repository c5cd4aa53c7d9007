"""The least time that a workload can take in a type on a machine: what is left to gain for either engine."""

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.peers.workloads import Workload
from benchmarks.shared.machine import Machine

BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True)
class Bound:
    """What no engine can exceed that does the model's arithmetic in a type and reads every weight once a step."""

    output_tokens_per_s: float
    itl_ms: float


def bound(workload: Workload, config: Mapping[str, int], machine: Machine, dtype: str = "float32") -> Bound:
    """The bound for a Llama of this configuration (Hugging Face's names), in float32 or bfloat16.

    Prompts take the larger of their arithmetic and of reading the weights once, and so does every later step, with the
    keys and values it attends over; what requests share is computed once and read once a step. Nothing else counts.
    """
    hidden, layers = config["hidden_size"], config["num_hidden_layers"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    layer = hidden * (2 * queries + 2 * keys + 3 * config["intermediate_size"])
    weights, head = layers * layer, hidden * config["vocab_size"]
    per_pair = 4 * queries * layers  # operations of a query and a key, with its value

    flops = machine.bfloat16_flops if dtype == "bfloat16" else machine.flops

    def seconds(operations: float, cached: float) -> float:
        moved = BYTES[dtype] * (weights + head + 2 * keys * layers * cached)
        return max(operations / flops, moved / machine.bandwidth)

    requests, shared, prompt = workload.requests, workload.shared_tokens, workload.prompt_tokens
    own = prompt - shared
    pairs = shared**2 / 2 + requests * own * (shared + own / 2)
    first = seconds(2 * weights * (shared + requests * own) + 2 * head * requests + per_pair * pairs, 0)
    steps = [
        seconds(requests * (2 * (weights + head) + per_pair * context), shared + requests * (context - shared))
        for context in range(prompt + 1, prompt + workload.output_tokens)
    ]
    total = first + sum(steps)
    return Bound(requests * workload.output_tokens / total, 1e3 * sum(steps) / len(steps))
