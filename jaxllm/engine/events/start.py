"""Begins to publish the events of an engine."""

import logging

from jaxllm.engine.events.publisher import Publisher
from jaxllm.engine.events.wire import CacheGroup
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.kv.events import KVEvents
from jaxllm.kv.manager import KVManager
from jaxllm.kv.shards import ShardedPages

logger = logging.getLogger(__name__)


def publish_events(resolved: ResolvedConfig, pages: KVManager | ShardedPages) -> Publisher:
    """Publish what the cache of these pages gains and loses from now on. Raises `ConfigError`."""
    settings = resolved.config.cache.kv_events
    assert settings is not None
    if not resolved.shares_prefixes:
        logger.warning("kv_events_config: prefix caching is off, so there will be no events")
    groups = resolved.cache_groups
    events = KVEvents(resolved.page_size, groups.num_tables)
    rank = resolved.config.parallel.data_parallel_rank or 0
    publisher = Publisher(settings, rank, events, resolved.page_size, cache_groups_of(resolved))
    pages.record(events)
    return publisher


def cache_groups_of(resolved: ResolvedConfig) -> list[CacheGroup]:
    """The page tables, and then the states if there are any, by vLLM's names."""
    is_latent = resolved.model.latent is not None
    whole, part = ("mla_attention", "sliding_window_mla") if is_latent else ("full_attention", "sliding_window")
    tables = [CacheGroup(part if window else whole, window) for window in resolved.cache_groups.windows]
    return [*tables, *([CacheGroup("mamba")] if resolved.cache_groups.has_states else [])]
