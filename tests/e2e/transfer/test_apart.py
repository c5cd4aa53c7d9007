"""Prefill apart from decode: tokens are those of one engine, and nothing is left over."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from jaxllm.engine.engine import Engine
from tests.adapter_folders import write_adapter
from tests.e2e.driving import request, run
from tests.e2e.test_host_tier import CASES, PARAMS, prompts, requests
from tests.e2e.transfer.pairs import apart, nothing_left, pair, with_params


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_adapter(tmp_path_factory.mktemp("adapters") / "one", 1, 8, 0.3)


@pytest.fixture(scope="module")
def engines() -> Iterator[tuple[Engine, Engine]]:
    with pair(enable_lora=True, max_lora_rank=8) as found:
        yield found


def check(first: Engine, second: Engine, adapter: Path | None = None, least: int = 500) -> None:
    """Tokens are those of the second engine alone, which has computed at most the ends of prompts."""
    given = requests(adapter)
    alone = run(second, [with_params(each, None, skip_reading_prefix_cache=True) for each in given])
    second.reset_prefix_cache()
    before = second.stats().transfer
    found = apart(first, second, given)
    assert {name: answer.token_ids for name, answer in found.items()} == {
        name: answer.token_ids for name, answer in alone.items()
    }
    after = second.stats().transfer
    assert after.tokens >= before.tokens + least
    assert after.bytes > before.bytes
    assert second.stats().num_compilations == 0
    nothing_left(first, second)
    sent = first.stats().transfer
    assert sent.granted == sent.released >= len(given)
    assert (sent.expired, sent.foreign, sent.refused_peers) == (0, 0, 0)


def test_tokens_are_those_of_one_engine(engines: tuple[Engine, Engine], adapter: Path) -> None:
    """Plain prompts, and some with an adapter, whose digests are known only when it is read."""
    check(*engines, adapter)


@pytest.mark.parametrize(
    "case", ["windows", "states", *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("latents", "int8"))]
)
def test_kinds_of_caches(tmp_path: Path, case: str) -> None:
    torch.manual_seed(0)
    write, options = CASES[case]
    if case == "states":
        options = {**options, "max_state_snapshots": 20}
    if write is not None:
        write(tmp_path / "model")
        options = {"model": str(tmp_path / "model"), **options}
    with pair(**options) as (first, second):
        check(first, second, least=200)


def test_short_prompts_and_prompts_that_are_here_fetch_nothing(engines: tuple[Engine, Engine]) -> None:
    first, second = engines
    second.reset_prefix_cache()
    before = second.stats().transfer.fetches
    short = request("short", prompts()[0][:16], **PARAMS)
    found = apart(first, second, [short])
    assert len(found["short"].token_ids) == PARAMS["max_tokens"]
    whole = request("whole", prompts()[0], **PARAMS)
    again = [apart(first, second, [whole])["whole"].token_ids for _ in range(2)]
    assert again[0] == again[1]
    assert second.stats().transfer.fetches == before + 1
    nothing_left(first, second)
