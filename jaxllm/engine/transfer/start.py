"""Begins an engine's part in transfers of pages."""

import dataclasses
import threading
from pathlib import Path

import jax

from jaxllm.config.kv_transfer import KVTransferSettings
from jaxllm.engine.offloading.host_tier import PageMover
from jaxllm.engine.offloading.layout import WEIGHTS
from jaxllm.engine.transfer.exchange import Exchange
from jaxllm.engine.transfer.fingerprint import fingerprint_of
from jaxllm.engine.transfer.identity import Identity
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.kv.manager import KVManager


def start_exchange(
    settings: KVTransferSettings, resolved: ResolvedConfig, pages: KVManager, mover: PageMover, news: threading.Event
) -> Exchange:
    """Listen for others, or be ready to fetch from them. Raises `ConfigError` for addresses that cannot be used."""
    rank = resolved.config.parallel.data_parallel_rank or 0
    if rank:
        settings = dataclasses.replace(settings, engine_id=f"{settings.engine_id}_dp{rank}")
    # Where compiled programs are kept, digests of weights are kept, too.
    cache = jax.config.values["jax_compilation_cache_dir"]
    kept = None if not cache else Path(cache) / WEIGHTS
    identity = Identity(lambda: fingerprint_of(resolved, mover, kept))
    sizes = (mover.page_bytes, mover.state_bytes)
    return Exchange(settings, rank, pages, sizes, identity, news, resolved.num_devices)
