"""Copies in files: an engine finds what another one has computed, and tokens do not depend on it."""

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from jaxllm.engine.engine import Engine
from jaxllm.engine.events.wire import short
from jaxllm.engine.offloading.disk_tier import DiskTier
from jaxllm.engine.offloading.layout import layout_of
from jaxllm.errors import ConfigError
from jaxllm.executor.weights import content
from jaxllm.kv.tiers.disk.folder import DiskFolder
from jaxllm.requests.beam_options import BeamOptions
from jaxllm.requests.request import Request
from tests.adapter_folders import write_adapter
from tests.e2e.driving import make_engine, request, run
from tests.e2e.test_host_tier import CASES, OPTIONS, PARAMS, prompts, settle, tokens_of
from tests.jaxllm.engine.events.consumer import Index, KVEventBatch
from tests.jaxllm.engine.events.test_publisher import replayed, until


def disk_of(engine: Engine) -> DiskTier:
    assert engine.host_tier is not None
    assert engine.host_tier.disk is not None
    return engine.host_tier.disk


def settled(engine: Engine) -> Engine:
    """After all that is to be written is in files."""
    settle(engine)
    for _ in range(1000):
        if not disk_of(engine).writer.num_waiting:
            return engine
        time.sleep(0.005)
    raise AssertionError("files are not written")


def start(folder: Path, **options: Any) -> Engine:
    engine = make_engine(**{**OPTIONS, "kv_offloading_path": str(folder), "num_gpu_blocks_override": 40, **options})
    assert disk_of(engine).writer.wait_until_ready(20)
    return engine


def forget(engine: Engine) -> None:
    """Forget all but files."""
    settled(engine)
    assert engine.scheduler.reset_prefix_cache()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("disk") / "a" / "b"


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_adapter(tmp_path_factory.mktemp("adapters") / "one", 1, 8, 0.3)


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[Engine]:
    engine = start(folder, enable_lora=True, max_lora_rank=8)
    yield engine
    engine.close()


EVENTS = {"enable_kv_cache_events": True, "endpoint": "tcp://*:0", "replay_endpoint": "tcp://*:0"}


def told(engine: Engine) -> Index:
    """What events have said so far."""
    engine.state()
    publisher, index = engine._kv_events, Index()
    assert publisher is not None
    until(lambda: len(publisher._replayable) == publisher._next)
    for payload in replayed(publisher, 0)[1]:
        index.apply(msgspec.msgpack.decode(payload, type=KVEventBatch).events)
    return index


def check_events(engine: Engine) -> None:
    """Events have told of what is on the host, and of what the engine has written to files."""
    index = told(engine)
    assert engine.host_tier is not None
    media = {
        medium: {(group, block) for group, block, where in index.media if where == medium}
        for medium in ("GPU", "CPU", "STORAGE")
    }
    entries = engine.host_tier._tier.host._entries.items()
    assert media["CPU"] == {(part, short(digest)) for digest, copies in entries for part in copies}
    folder = disk_of(engine).writer.folder
    assert folder is not None
    assert media["STORAGE"] < {(0, short(digest)) for digest in folder._parts}
    assert len(media["STORAGE"]) >= 3
    assert set(index.media.values()) == {1}
    assert {block for each in media.values() for _, block in each} <= index.tokens.keys()
    one = next(digest for digest in folder._parts if (0, short(digest)) in media["STORAGE"])
    folder._path(one, 0).unlink()
    folder.look_again()
    engine.copy_while_idle()
    assert index.media - told(engine).media == {(0, short(one), "STORAGE"): 1}


def test_a_restart_finds_prefixes(engine: Engine, folder: Path, adapter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with an adapter; a salt, and other options that pages depend on, keep them apart. Events tell of it."""
    monkeypatch.setenv("VLLM_HOST_IP", "127.0.0.1")
    expected = tokens_of(engine, adapter, skip_reading_prefix_cache=True)
    settled(engine)
    assert engine.stats().offload.disk_write_bytes > 10 * 16 * 100
    after = start(folder, enable_lora=True, max_lora_rank=8, max_num_seqs=2, kv_events_config=EVENTS)
    try:
        assert tokens_of(after, adapter) == expected
        found = after.stats().offload
        assert found.disk_hits >= 40
        assert found.hits >= 40 * 16
        assert found.disk_read_bytes > 0
        assert (found.disk_read_failures, found.failures, after.stats().num_compilations) == (0, 0, 0)
        before = found.disk_queries
        salted = request("salted", prompts()[0], **PARAMS)
        salted.cache_salt = "another's"
        assert run(after, [salted])["salted"].token_ids == expected["0"]
        assert after.stats().offload.disk_queries == before
        # What nobody has asked: all else is in files already.
        run(after, [request("new", list(reversed(prompts()[0])), **PARAMS)])
        settled(after)
        check_events(after)
    finally:
        after.close()
    other = start(folder, kv_cache_dtype="int8")
    try:
        tokens_of(other)
        assert not other.stats().offload.disk_hits
    finally:
        other.close()


def test_requests_that_run_together_share_what_comes(engine: Engine) -> None:
    expected = tokens_of(engine, skip_reading_prefix_cache=True)
    forget(engine)
    before = engine.stats().offload
    assert tokens_of(engine) == expected
    after = engine.stats().offload
    assert after.hits > before.hits + 300
    assert after.disk_hits > before.disk_hits + 20


def drawn(seed: int, **more: Any) -> list[Request]:
    """Requests with beams, samples or neither, for the beginnings of a few prompts."""
    rng = np.random.default_rng(seed)
    made = []
    for number in range(14):
        params: dict[str, Any] = {"temperature": 0, "max_tokens": int(rng.integers(1, 12)), "ignore_eos": True}
        kind = rng.choice(["greedy", "sampled", "beams"])
        if kind == "beams":
            params["beam_search"] = BeamOptions(width=int(rng.integers(2, 4)))
        elif kind == "sampled":
            params |= {"temperature": 1.0, "seed": number, "logprobs": 2}
        prompt = prompts()[int(rng.integers(0, 8))]
        made.append(request(number, prompt[: int(rng.integers(40, 120))], **params, **more))
    return made


def answers(engine: Engine, requests: list[Request]) -> dict[str, Any]:
    found = run(engine, requests).items()
    return {name: (answer.token_ids, answer.sequences, answer.finish_reason) for name, answer in found}


def test_drawn_requests_and_beams(engine: Engine) -> None:
    for seed in range(3):
        expected = answers(engine, drawn(seed, skip_reading_prefix_cache=True))
        forget(engine)
        before = engine.stats().offload
        for _ in range(2):
            assert answers(engine, drawn(seed)) == expected
        after = engine.stats().offload
        assert after.disk_hits > before.disk_hits
        assert after.hits > before.hits
        assert after.failures == before.failures


@pytest.mark.parametrize(
    "case", ["states", *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("windows", "latents", "int8"))]
)
def test_kinds_of_caches(tmp_path: Path, case: str) -> None:
    torch.manual_seed(0)
    write, options = CASES[case]
    if write is not None:
        write(tmp_path / "model")
        options = {"model": str(tmp_path / "model"), **options}
    found: list[dict[str, list[int]]] = []
    hits = 0
    for _ in range(2):
        engine = start(tmp_path / "disk", **options)
        try:
            found.append(tokens_of(engine))
            settled(engine)
            hits = engine.stats().offload.disk_hits
        finally:
            engine.close()
    assert found[0] == found[1]
    assert hits >= 15


def test_other_weights_are_another_layout(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where only one byte differs, and times and sizes do not; unchanged files are not read again."""
    assert engine.host_tier is not None
    mover, model = engine.host_tier._mover, tmp_path / "model"
    model.mkdir()
    resolved = engine.control._resolved
    for path in resolved.folder.iterdir():
        if path.suffix in (".json", ".safetensors"):
            (model / path.name).write_bytes(path.read_bytes())
    resolved = type(resolved)(**{**vars(resolved), "folder": model})
    first = layout_of(resolved, mover, tmp_path / "kept")
    reads: list[Path] = []
    read_whole = content._content

    def read(path: Path, report: Callable[[int], None]) -> str:
        reads.append(path)
        return read_whole(path, report)

    monkeypatch.setattr(content, "_content", read)
    assert layout_of(resolved, mover, tmp_path / "kept") == first
    assert not reads
    (weights,) = model.glob("*.safetensors")
    before, data = weights.stat(), bytearray(weights.read_bytes())
    data[len(data) * 2 // 3] ^= 1
    weights.write_bytes(data)
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    other = layout_of(resolved, mover, tmp_path / "kept")
    assert other[0] != first[0]
    assert reads == [weights]
    (tmp_path / "kept").write_text("{")
    assert layout_of(resolved, mover, tmp_path / "kept") == other


def fail_to_write(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def write(*_: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("jaxllm.kv.tiers.disk.folder.write_page", write)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_a_disk_that_cannot_be_written(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    """It is said once, counted, and tried again later."""
    expected = tokens_of(engine, skip_reading_prefix_cache=True)
    assert engine.reset_prefix_cache()
    disk, before = disk_of(engine), engine.stats().offload
    fail_to_write(monkeypatch, code)
    assert tokens_of(engine) == expected
    settled(engine)
    after = engine.stats().offload
    assert after.disk_write_failures == before.disk_write_failures + 1
    assert after.disk_dropped > before.disk_dropped + 10
    assert after.disk_write_bytes == before.disk_write_bytes
    assert caplog.text.count(os.strerror(code)) == 1
    monkeypatch.undo()
    disk.writer._retry_at = 0.0
    assert engine.scheduler.reset_prefix_cache()
    assert tokens_of(engine) == expected
    settled(engine)
    assert engine.stats().offload.disk_write_bytes > after.disk_write_bytes
    assert disk.has(engine_digest(engine), 0)


def engine_digest(engine: Engine) -> bytes:
    """The digest of some page that is on the host."""
    assert engine.host_tier is not None
    return next(iter(engine.host_tier._tier.host._entries))


def test_a_disk_that_hangs(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests wait for as long as computing takes, and later ones do not wait at all."""
    expected = tokens_of(engine, skip_reading_prefix_cache=True)
    forget(engine)
    disk, goes_on = disk_of(engine), threading.Event()
    read = DiskFolder.read
    monkeypatch.setattr(DiskFolder, "read", lambda *arguments: goes_on.wait(30) and read(*arguments))
    monkeypatch.setattr(disk, "patience", lambda num_tokens: 0.2)
    before = engine.stats().offload
    assert tokens_of(engine) == expected
    after = engine.stats().offload
    assert after.disk_hits == before.disk_hits
    assert before.disk_read_failures < after.disk_read_failures < before.disk_read_failures + 8
    begin = time.monotonic()
    assert engine.scheduler.reset_prefix_cache()
    assert tokens_of(engine) == expected
    assert engine.stats().offload.disk_read_failures == after.disk_read_failures
    assert time.monotonic() - begin < 20
    goes_on.set()
    assert engine.host_tier is not None
    promotions = engine.host_tier._tier.promotions
    assert promotions is not None
    for _ in range(500):
        if not len(promotions):
            break
        engine.host_tier.on_step_begin()
        time.sleep(0.01)
    promotions._paused_until = 0.0
    engine.scheduler.check_integrity()


def test_damaged_and_vanished_files_are_computed_again(
    engine: Engine, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = tokens_of(engine, skip_reading_prefix_cache=True)
    forget(engine)
    before = engine.stats().offload
    files = [path for path in folder.rglob("*.0") if path.stat().st_size > 1000]
    for number, path in enumerate(files):
        if number % 3 == 0:
            path.unlink()
        elif number % 3 == 1:
            os.truncate(path, 500)
        else:
            data = bytearray(path.read_bytes())
            data[-1] ^= 1
            path.write_bytes(data)
    assert tokens_of(engine) == expected
    after = engine.stats().offload
    assert after.disk_hits == before.disk_hits
    assert after.disk_read_failures > before.disk_read_failures
    assert caplog.text.count("cannot be read") <= 1
    forget(engine)
    assert tokens_of(engine) == expected
    assert engine.stats().offload.disk_hits > after.disk_hits


def test_three_pages_of_files(engine: Engine) -> None:
    expected = tokens_of(engine, skip_reading_prefix_cache=True)
    disk = disk_of(engine)
    files = disk.writer.folder
    assert files is not None
    limit, files.limit = files.limit, 3 * (disk.size(0) + 100)
    files.look_again()
    try:
        for _ in range(2):
            forget(engine)
            assert tokens_of(engine) == expected
        settled(engine)
        assert files.total <= files.limit
    finally:
        files.limit = limit


def test_what_is_forgotten_is_deleted(engine: Engine, folder: Path) -> None:
    """By who asks for that; an engine that sleeps, or whose weights are replaced, leaves files."""
    tokens_of(engine)
    settled(engine)
    assert any(folder.rglob("*.0"))
    assert engine.reset_prefix_cache()
    for _ in range(200):
        if not any(folder.rglob("*.0")):
            break
        time.sleep(0.01)
    assert not any(folder.rglob("*.0"))
    tokens_of(engine)
    settled(engine)
    assert any(folder.rglob("*.0"))
    engine.control.update_weights_from()
    before = engine.stats().offload
    tokens_of(engine)
    settled(engine)
    after = engine.stats().offload
    assert (after.disk_queries, after.disk_write_bytes) == (before.disk_queries, before.disk_write_bytes)
    assert any(folder.rglob("*.0"))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"kv_offloading_size": 0, "kv_offloading_path": "x"}, "set kv_offloading_size"),
        ({"kv_offloading_path": f"{__file__}/x"}, "cannot be made a folder: Not a directory"),
        ({"kv_offloading_path": "x\0y"}, "cannot be made a folder"),
        ({"kv_offloading_disk_size": 0}, "must be at least 0.001"),
    ],
)
def test_what_is_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        make_engine(**{**OPTIONS, "num_gpu_blocks_override": 20, **options})
