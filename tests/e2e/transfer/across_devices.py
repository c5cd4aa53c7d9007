"""Engines on different numbers of virtual devices exchange pages; prints how many tokens came each way.

Run by a test: across_devices.py MODEL SIZES, pairs of tensor-parallel sizes such as 1-2 2-4; in 2x3, 3 are stages.
"""

import sys
from typing import Any

from tests.e2e.driving import make_engine, request, run
from tests.e2e.transfer.pairs import LONG, OPTIONS, apart, nothing_left, with_params

PROMPTS = [[5 + (7 * number + place * place) % 100 for place in range(100)] for number in range(3)]


def engine(size: str, **options: Any) -> Any:
    tensor, _, stages = size.partition("x")
    options |= {"tensor_parallel_size": int(tensor), "pipeline_parallel_size": int(stages or 1)}
    transfer = {"kv_role": "kv_both", "kv_port": 0, "kv_connector_extra_config": LONG}
    return make_engine(**{**OPTIONS, "kv_transfer_config": transfer, **options})


def main() -> None:
    model, *sizes = sys.argv[1:]
    pairs = [each.split("-") for each in sizes]
    engines = {size: engine(size, model=model) for size in sorted({size for pair in pairs for size in pair})}
    for first, second in ((engines[one], engines[other]) for one, other in pairs):
        given = [request(number, each, temperature=0, max_tokens=8, ignore_eos=True)
                 for number, each in enumerate(PROMPTS)]  # fmt: skip
        alone = run(second, [with_params(each, None, skip_reading_prefix_cache=True) for each in given])
        assert first.reset_prefix_cache()
        assert second.reset_prefix_cache()
        before = second.stats().transfer
        found = apart(first, second, given)
        assert {name: each.token_ids for name, each in found.items()} == {
            name: each.token_ids for name, each in alone.items()
        }
        nothing_left(first, second)
        sys.stdout.write(f"{second.stats().transfer.tokens - before.tokens}\n")
    for each in engines.values():
        each.close()


if __name__ == "__main__":
    main()
