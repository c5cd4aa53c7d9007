"""Begins the host tier of an engine, where copying pages pays."""

import logging
import threading
import time
from dataclasses import dataclass

import jax
import numpy as np
import psutil

from jaxllm.config.kv_transfer import KVTransferSettings
from jaxllm.engine.offloading.disk_tier import DiskTier
from jaxllm.engine.offloading.host_tier import HostTier, PageMover
from jaxllm.engine.offloading.layout import WEIGHTS, layout_of
from jaxllm.engine.offloading.pace import Pace
from jaxllm.engine.offloading.transfers import Transfers, as_rows, num_bytes, put
from jaxllm.engine.transfer.start import start_exchange
from jaxllm.errors import CapacityError, ConfigError
from jaxllm.executor.offloading_limits import offloading_folder
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.executor.runner import Runner
from jaxllm.executor.transfer_programs import transfer_sizes
from jaxllm.kv.manager import KVManager
from jaxllm.kv.tiers.disk.folder import DiskFolder
from jaxllm.kv.tiers.host_pool import HostPool, allocate, crc
from jaxllm.models.sharding import sharding
from jaxllm.requests.request import Request
from jaxllm.requests.sampling_params import SamplingParams
from jaxllm.scheduler.scheduler import Scheduler

logger = logging.getLogger(__name__)

MEASURED_TOKENS = 512
"""Tokens of the step that is measured, at most."""
READY_SECONDS = 2.0
"""How long a start waits for the folder of files: then the first request finds prefixes there."""
BEHIND, PART = 2, 8
"""Copies do not rest where more waits than so many calls copy, or than this part of the pages: those may be evicted."""
REPEATS = 3
"""The best of so many counts."""


@dataclass(frozen=True)
class Speeds:
    """Seconds per token: to copy it to the host, to bring it back, and to compute it; and bytes of a token."""

    store: float
    load: float
    compute: float
    token_bytes: float

    @property
    def pays(self) -> bool:
        """Whether copies are faster than computing, both ways."""
        return max(self.store, self.load) < self.compute

    def __str__(self) -> str:
        store, load = (self.token_bytes / each / 2**30 for each in (self.store, self.load))
        return (
            f"pages are copied to the host with {store:.2f} GiB/s and back with {load:.2f} GiB/s, which is "
            f"{1 / self.store:,.0f} and {1 / self.load:,.0f} tokens/s; {1 / self.compute:,.0f} tokens/s are computed"
        )


def start_host_tier(
    resolved: ResolvedConfig, runner: Runner, pages: KVManager, scheduler: Scheduler, fresh: Scheduler
) -> HostTier | None:
    """The host tier, or None where it does not pay; `fresh` is a scheduler without requests, to measure with.

    Raises `CapacityError` where the host has not so much memory, `ConfigError` for transfers that cannot be made.
    """
    options = resolved.config.cache
    settings = options.kv_transfer
    if not resolved.shares_prefixes and settings is not None:
        raise ConfigError(
            "kv_transfer_config: there is no room for snapshots of states, with which prefixes are found; give "
            "max_state_snapshots, or more memory"
        )
    if not resolved.shares_prefixes:
        logger.warning("kv_offloading_size: prefix caching is off, so nothing is copied to the host")
        return None
    mover = PageMover(runner, transfer_sizes(resolved), sharding(resolved.mesh))
    if options.kv_offloading_size or settings is None:
        host = _make_pool(options.kv_offloading_size, mover.page_bytes)
    else:
        host = _make_buffer(settings, pages, mover)
    token_seconds = None
    # Elsewhere, devices compute, and their memory is copied by engines of its own.
    pace = Pace(min(BEHIND * mover.most, pages.num_pages // PART)) if resolved.platform == "cpu" else None
    if options.kv_offloading == "auto" and settings is None:
        speeds = measure(resolved, runner, mover, fresh)
        if not speeds.pays:
            logger.warning(
                "kv_offloading_size has no effect, since computing is faster: %s; kv_offloading='always' copies anyway",
                speeds,
            )
            return None
        token_seconds = speeds.compute
        if pace is not None:
            pace.byte_seconds = speeds.compute / speeds.token_bytes
        logger.info("host tier: room for %d pages; %s", host.num_slots, speeds)
    else:
        logger.info("host tier: room for %d pages", host.num_slots)
    transfers = Transfers(host, pace)
    disk = _disk_tier(resolved, mover, host, transfers.news, token_seconds, pace)
    tier = HostTier(pages.use_tier(host), mover, scheduler, transfers, disk, pace)
    if settings is not None:
        assert pages.tier is not None
        pages.tier.stores.copies_ahead = settings.produces or options.kv_offloading_size > 0
        tier.exchange = start_exchange(settings, resolved, pages, mover, transfers.news)
        logger.info("KV transfer: engine %s %s", tier.exchange.settings.engine_id, tier.exchange.description)
    return tier


def _make_buffer(settings: KVTransferSettings, pages: KVManager, mover: PageMover) -> HostPool:
    """Memory for pages of others: by default as much as the devices have, if a quarter of what is free is enough."""
    if settings.buffer_bytes is not None:
        return _make_pool(settings.buffer_bytes / 2**30, mover.page_bytes, "kv_transfer_config: kv_buffer_size")
    most = psutil.virtual_memory().available // (4 * mover.page_bytes)
    states = 0 if pages.snapshots is None else pages.snapshots.count * -(-mover.state_bytes // mover.page_bytes)
    return HostPool(max(1, min(pages.num_pages + states, most)), mover.page_bytes)


def _disk_tier(
    resolved: ResolvedConfig,
    mover: PageMover,
    host: HostPool,
    news: threading.Event,
    token_seconds: float | None,
    pace: Pace | None,
) -> DiskTier | None:
    """The files behind a host tier, if there is a folder for them. It is opened in a thread."""
    options = resolved.config.cache
    if options.kv_offloading_path is None:
        return None
    root = offloading_folder(options.kv_offloading_path)
    limit = int(options.kv_offloading_disk_size * 2**30)

    def open_folder() -> DiskFolder:
        layout, description = layout_of(resolved, mover, root / WEIGHTS)
        return DiskFolder(root, layout, limit, description)

    sizes = (mover.page_bytes, mover.state_bytes)
    states = resolved.cache_groups.num_tables
    description = f"{options.kv_offloading_disk_size:.2f} GiB of files in {root}"
    disk = DiskTier(host, open_folder, sizes, states, news, token_seconds, description, pace)
    if not disk.writer.wait_until_ready(READY_SECONDS):
        logger.info("disk tier: files of %s are found later: weights are hashed, or the disk is slow", root)
    return disk


def _make_pool(gib: float, page_bytes: int, name: str = "kv_offloading_size") -> HostPool:
    size = round(gib * 2**30)
    if size < page_bytes:
        raise CapacityError(f"{name}={gib:g} (GiB): less than a page of {page_bytes} bytes; give more")
    available = psutil.virtual_memory().available
    if size > available:
        raise CapacityError(
            f"{name}={gib:g} (GiB): only {available / 2**30:.1f} GiB of the host's memory are free; give less"
        )
    return HostPool(size // page_bytes, page_bytes)


def measure(resolved: ResolvedConfig, runner: Runner, mover: PageMover, fresh: Scheduler) -> Speeds:
    """How fast pages are copied, checksums included, and tokens are computed. Nothing of it stays."""
    store = load = compute = float("inf")
    count = min(mover.most, resolved.cache_groups.most_pages(resolved.max_model_len))
    staging = mover.staging(count)
    data = allocate(mover.page_bytes * staging[0].shape[0])
    for _ in range(REPEATS):
        start = time.monotonic()
        rows = as_rows(mover.gather([0] * count), count)
        data[: rows.size] = rows.ravel()
        crc(data)
        store = min(store, time.monotonic() - start)
        start = time.monotonic()
        crc(data)
        ends = np.cumsum([num_bytes(each) for each in staging])
        parts = np.split(data.copy(), ends[:-1])
        mover.scatter(tuple(map(put, parts, staging)), [0] * count)
        jax.block_until_ready([calls.state for calls in runner.calls.every])
        load = min(load, time.monotonic() - start)
    for _ in range(2):  # The first may compile.
        compute = min(compute, _compute(resolved, runner, fresh))
    # All tables of a request have a page for the same tokens, those with windows for a while.
    tokens = count * resolved.page_size / resolved.cache_groups.num_tables
    return Speeds(store / tokens, load / tokens, compute, mover.page_bytes * count / tokens)


def _compute(resolved: ResolvedConfig, runner: Runner, fresh: Scheduler) -> float:
    """Seconds that a token of a prompt takes."""
    length = min(MEASURED_TOKENS, resolved.max_num_batched_tokens, resolved.max_model_len - 1)
    prompt = np.arange(length, dtype=np.int32) % resolved.model.vocab_size
    fresh.add(Request(request_id="measured", prompt_token_ids=prompt, params=SamplingParams(max_tokens=1)))
    plan = fresh.schedule()
    assert plan is not None
    start = time.monotonic()
    runner.collect(runner.dispatch(plan, fresh.table))
    seconds = time.monotonic() - start
    fresh.finish("measured", "abort")
    return seconds / plan.num_tokens
