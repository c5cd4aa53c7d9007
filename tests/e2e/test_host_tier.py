"""The host tier: tokens do not depend on it, and prefixes that have left the devices come back from it."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Lfm2Config, Lfm2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from jaxllm.engine.engine import Engine
from jaxllm.engine.offloading.transfers import Transfers
from jaxllm.errors import CapacityError, ConfigError
from jaxllm.kv.tiers.host_pool import HostPool
from jaxllm.kv.tiers.loads import HOLD_REASON
from jaxllm.requests.lora_request import LoRARequest
from jaxllm.requests.request import Request
from tests.adapter_folders import write_adapter
from tests.e2e.driving import make_engine, request, run
from tests.models.every_family import FAMILIES

OPTIONS: dict[str, Any] = {
    "block_size": 16, "max_num_seqs": 4, "max_num_batched_tokens": 64, "max_model_len": 256,
    "kv_offloading_size": 0.01, "kv_offloading": "always",
}  # fmt: skip
PARAMS: dict[str, Any] = {"temperature": 0, "max_tokens": 20, "ignore_eos": True}
VOCABULARY = 128
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4,
    "num_key_value_heads": 2, "num_hidden_layers": 4, "max_position_embeddings": 256, "initializer_range": 0.5,
}  # fmt: skip
SLIDING, FULL = "sliding_attention", "full_attention"

Tokens = dict[str, list[int]]


def prompts(count: int = 4) -> list[list[int]]:
    """Of 60 to 170 tokens; the second half begin like those of the first."""
    rng = np.random.default_rng(0)
    first = [rng.integers(3, VOCABULARY, int(length)).tolist() for length in rng.integers(60, 170, count)]
    return first + [each[:50] + rng.integers(3, VOCABULARY, 30).tolist() for each in first]


def requests(adapter: Path | None = None, **params: Any) -> list[Request]:
    """Every second with an adapter, if there is one."""
    made = [request(index, prompt, **{**PARAMS, **params}) for index, prompt in enumerate(prompts())]
    if adapter is not None:
        made += [request(f"with {index}", prompt, **{**PARAMS, **params}) for index, prompt in enumerate(prompts(2))]
        for each in made[len(prompts()) :]:
            each.lora_request = LoRARequest("one", 1, str(adapter))
    return made


def tokens_of(engine: Engine, adapter: Path | None = None, **params: Any) -> Tokens:
    return {name: answer.token_ids for name, answer in run(engine, requests(adapter, **params)).items()}


def settle(engine: Engine) -> None:
    """Let all that is to be copied arrive at the host."""
    tier = engine.host_tier
    assert tier is not None
    for _ in range(500):
        tier.go_on()
        if not tier._transfers._stores.num_left and not len(tier._tier.stores) and not tier._tier.stores.has_states:
            return
        time.sleep(0.005)
    raise AssertionError("copies do not end")


def check(engine: Engine, adapter: Path | None = None, least: int = 300) -> None:
    """Tokens are those without any cache; then everything comes from the host, `least` tokens of it."""
    expected = tokens_of(engine, adapter, skip_reading_prefix_cache=True)
    settle(engine)
    before = engine.stats().offload
    assert tokens_of(engine, adapter) == expected
    after = engine.stats().offload
    assert after.hits >= before.hits + least
    assert after.load_bytes > before.load_bytes
    assert after.failures == before.failures
    settle(engine)
    assert engine.stats().num_compilations == 0


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_adapter(tmp_path_factory.mktemp("adapters") / "one", 1, 8, 0.3)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """So few pages that nothing stays for long, and a host with room for everything."""
    engine = make_engine(**OPTIONS, num_gpu_blocks_override=20, enforce_eager=False, enable_lora=True, max_lora_rank=8)
    yield engine
    engine.close()


def test_prefixes_come_back(engine: Engine, adapter: Path) -> None:
    check(engine, adapter)


def test_tokens_are_those_without_a_tier(engine: Engine) -> None:
    plain = make_engine(**{**OPTIONS, "kv_offloading_size": 0}, num_gpu_blocks_override=200)
    try:
        assert tokens_of(engine) == tokens_of(plain)
        assert plain.host_tier is None
        assert plain.stats().offload.queries == 0
    finally:
        plain.close()


def windowed(folder: Path) -> None:
    config = Qwen3Config(
        **SIZES, head_dim=16, sliding_window=20, use_sliding_window=True, layer_types=[SLIDING, SLIDING, FULL, SLIDING]
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)


def recurrent(folder: Path) -> None:
    config = Lfm2Config(
        **SIZES, layer_types=["conv", "conv", FULL, "conv"], block_auto_adjust_ff_dim=False, tie_word_embeddings=False
    )
    Lfm2ForCausalLM(config).save_pretrained(folder)


def latent(folder: Path) -> None:
    FAMILIES["deepseek_v2-lite"].save(folder, vocab_size=VOCABULARY, max_position_embeddings=256)


CASES: dict[str, tuple[Callable[[Path], None] | None, dict[str, Any]]] = {
    "windows": (windowed, {"num_gpu_blocks_override": 60}),
    "states": (recurrent, {"max_state_snapshots": 2, "mamba_block_size": 48, "dtype": "float32"}),
    "latents": (latent, {}),
    "int8": (None, {"kv_cache_dtype": "int8"}),
}


@pytest.mark.parametrize(
    "case", ["windows", "states", *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("latents", "int8"))]
)
def test_kinds_of_caches(tmp_path: Path, case: str) -> None:
    torch.manual_seed(0)
    write, options = CASES[case]
    if write is not None:
        write(tmp_path)
        options = {"model": str(tmp_path), **options}
    engine = make_engine(**{**OPTIONS, "num_gpu_blocks_override": 20, **options})
    try:
        check(engine, least=100)
    finally:
        engine.close()


def test_damaged_and_lost_copies_are_computed_again(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = tokens_of(engine, skip_reading_prefix_cache=True)
    settle(engine)
    before = engine.stats().offload
    tier = engine.host_tier
    assert tier is not None
    tier._tier.host._memory[::2, 7] ^= 1
    assert tokens_of(engine) == expected
    damaged = engine.stats().offload
    assert damaged.failures > before.failures
    settle(engine)

    def fail(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr("jaxllm.engine.offloading.transfers.put", fail)
    assert tokens_of(engine) == expected
    assert engine.stats().offload.failures > damaged.failures
    monkeypatch.setattr("jaxllm.engine.offloading.transfers.as_rows", fail)
    assert tokens_of(engine) == expected
    settle(engine)
    engine.scheduler.check_integrity()


def test_others_run_while_one_waits_and_nothing_is_stranded(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A load is slow: others get their tokens meanwhile. Who waits may leave, and the cache may be forgotten."""
    expected = tokens_of(engine, skip_reading_prefix_cache=True)
    settle(engine)
    is_open = False
    load = Transfers._load

    def slow(self: Transfers, job: Any) -> None:
        while not is_open:
            time.sleep(0.002)
        load(self, job)

    monkeypatch.setattr(engine.host_tier._transfers._loads, "_work", slow.__get__(engine.host_tier._transfers))  # type: ignore[union-attr]
    free = engine.pages.num_free_pages  # type: ignore[union-attr]
    for leaves in ("aborted", "reset", ""):
        is_open = False
        waiting = request("waiting", prompts()[0], **PARAMS)
        engine.add_request(waiting)
        engine.step()
        assert engine.scheduler.hold_reasons(waiting) == {HOLD_REASON}
        beside = run_some(engine, request("beside", [5, 6, 7], **PARAMS), 20)
        assert len(beside) == 20
        engine.scheduler.check_integrity()
        if leaves == "aborted":
            engine.abort_request("waiting")
        elif leaves == "reset":
            assert engine.reset_prefix_cache()
            engine.scheduler.check_integrity()
        is_open = True
        found = run_some(engine, None, 20)
        assert found == ([] if leaves == "aborted" else expected["0"])
        while engine.host_tier._transfers._loads.num_left:  # type: ignore[union-attr]
            engine.host_tier.on_step_begin()  # type: ignore[union-attr]
        engine.scheduler.check_integrity()
        assert engine.pages.num_free_pages == free  # type: ignore[union-attr]
        tokens_of(engine, skip_reading_prefix_cache=True)
        settle(engine)


def run_some(engine: Engine, added: Request | None, count: int) -> list[int]:
    """The tokens of the steps that it takes to get so many, or until nothing is left."""
    if added is not None:
        engine.add_request(added)
    found: list[int] = []
    while len(found) < count and engine.has_unfinished_requests():
        found += [token for output in engine.step() for token in output.token_ids]
    return found


def test_three_pages_of_room(engine: Engine) -> None:
    tier = engine.host_tier
    assert tier is not None
    expected = tokens_of(engine, skip_reading_prefix_cache=True)
    settle(engine)
    host, slots = tier._tier.host, tier._tier.host.num_slots
    small = HostPool(3, host.slot_bytes)
    host.clear()
    for name in ("num_slots", "_memory", "_free"):
        setattr(host, name, getattr(small, name))
    try:
        for _ in range(2):
            assert tokens_of(engine) == expected
            settle(engine)
    finally:
        host.clear()
        whole = HostPool(slots, host.slot_bytes)
        for name in ("num_slots", "_memory", "_free"):
            setattr(host, name, getattr(whole, name))


def test_off_where_computing_is_faster(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured, and said."""
    monkeypatch.setattr("jaxllm.engine.offloading.start._compute", lambda *_: 1e-12)
    with caplog.at_level("INFO"):
        engine = make_engine(**{**OPTIONS, "kv_offloading": "auto"}, num_gpu_blocks_override=20)
        engine.close()
    assert engine.host_tier is None
    assert "kv_offloading_size has no effect, since computing is faster" in caplog.text
    monkeypatch.undo()


HEAD = {"method": "eagle3", "model": "demo-eagle3", "num_speculative_tokens": 3}
TRANSFER = {"kv_offloading_size": 0, "kv_transfer_config": {"kv_role": "kv_both", "kv_port": 0}}


@pytest.mark.parametrize(
    ("options", "error", "problem"),
    [
        ({"kv_offloading_size": 1e-9}, CapacityError, "less than a page of"),
        ({"kv_offloading_size": 1e6}, CapacityError, "of the host's memory are free"),
        ({"speculative_config": HEAD}, ConfigError, "not supported with drafts from layers on the device"),
        ({**TRANSFER, "speculative_config": HEAD}, ConfigError, "not supported with drafts from layers on the device"),
    ],
)
def test_what_is_refused(options: dict[str, Any], error: type[Exception], problem: str) -> None:
    name = "kv_transfer_config" if "kv_transfer_config" in options else "kv_offloading_size"
    with pytest.raises(error, match=f"{name}.*{problem}"):
        make_engine(**{**OPTIONS, "num_gpu_blocks_override": 20, **options})
