"""Makes the parts of an engine from its configuration."""

from typing import TYPE_CHECKING, Any

from jaxllm.config import EngineConfig
from jaxllm.config.engine_info import StageInfo
from jaxllm.config.kv_events import read_kv_events
from jaxllm.config.kv_transfer import read_kv_transfer
from jaxllm.engine.offloading.host_tier import HostTier
from jaxllm.engine.offloading.start import start_host_tier
from jaxllm.executor.memory.capacity import bytes_on_device
from jaxllm.executor.offloading_limits import check_offloading
from jaxllm.executor.resolve import resolve_config
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.executor.runner import Runner
from jaxllm.kv.manager import KVManager
from jaxllm.kv.snapshots import SnapshotPool
from jaxllm.requests.request import Request
from jaxllm.scheduler.scheduler import Scheduler

if TYPE_CHECKING:
    from jaxllm.engine.events.publisher import Publisher
    from jaxllm.engine.features.encoded_media import EncodedMedia
    from jaxllm.engine.features.faults import Faults
    from jaxllm.engine.features.logits_processors import Processing
    from jaxllm.kv.shards import ShardedPages
    from jaxllm.planning.step_work import StepWork
    from jaxllm.scheduler.sharded import ShardedScheduler

if TYPE_CHECKING:
    from jaxllm.adapters.adapters import Adapters


def make_scheduler(
    resolved: ResolvedConfig, num_pages: int
) -> "tuple[KVManager | ShardedPages, Scheduler | ShardedScheduler]":
    """The pages, `num_pages` for each data shard, and the scheduler that hands them out."""
    config, groups = resolved.config, resolved.cache_groups
    interval = config.cache.prefix_cache_retention_interval
    shards = [
        KVManager(
            num_pages,
            resolved.page_size,
            enable_prefix_caching=resolved.shares_prefixes,
            groups=groups,
            snapshots=SnapshotPool(resolved.max_num_seqs, resolved.num_snapshots) if groups.has_states else None,
            retention_interval=None if interval == "dense" else interval,
        )
        for _ in range(resolved.data_shards)
    ]
    options: dict[str, Any] = {
        "max_num_seqs": resolved.max_num_seqs,
        "max_num_batched_tokens": resolved.max_num_batched_tokens,
        "max_model_len": resolved.max_model_len,
        "policy": config.scheduler.scheduling_policy,
        "long_prefill_token_threshold": config.scheduler.long_prefill_token_threshold,
        "mamba_block_size": config.cache.mamba_block_size,
        "keeps_spans": resolved.sees_spans,
        "stages": resolved.num_stages if config.scheduler.async_scheduling else 1,
    }
    if len(shards) == 1:
        return shards[0], Scheduler(pages=shards[0], **options)
    # Most engines have one shard: starts are faster without the import.
    from jaxllm.scheduler.sharded import make_sharded

    return make_sharded(shards, **options)


def make_kv_events(resolved: ResolvedConfig, pages: "KVManager | ShardedPages") -> "Publisher | None":
    """What publishes the events of the prefix cache, or None where nobody wants them. Raises `ConfigError`."""
    if resolved.config.cache.kv_events is None:
        return None
    # Most engines publish nothing: starts are faster without the import.
    from jaxllm.engine.events.start import publish_events

    return publish_events(resolved, pages)


def make_host_tier(
    resolved: ResolvedConfig,
    runner: Runner,
    pages: "KVManager | ShardedPages",
    scheduler: "Scheduler | ShardedScheduler",
) -> HostTier | None:
    """What copies pages to the host and back, or None where nothing does. Raises `CapacityError`."""
    if not resolved.config.cache.copies_pages:
        return None
    assert isinstance(pages, KVManager)
    assert isinstance(scheduler, Scheduler)
    _, fresh = make_scheduler(resolved, pages.num_pages)
    assert isinstance(fresh, Scheduler)
    return start_host_tier(resolved, runner, pages, scheduler, fresh)


def resolve_on_devices(config: EngineConfig, processes: int = 1) -> ResolvedConfig:
    """The configuration, as it fits the devices that are here, with kernels that are right on them."""
    # What is wrong with them is said before weights are read.
    read_kv_events(config.cache.kv_events_config)
    read_kv_transfer(config.cache.kv_transfer_config)
    resolved = resolve_config(config, processes=processes)
    check_offloading(resolved, processes)
    if resolved.platform != "cpu":
        # Only here: a start on CPU need not wait for the imports.
        from jaxllm.executor.kernels.verification import verify_kernels
        from jaxllm.planning.fit import fit_here

        resolved = verify_kernels(fit_here(resolved))
    return resolved


def make_processing(resolved: ResolvedConfig) -> "Processing | None":
    """The logits processors, or None where the engine has none."""
    if not resolved.processors:
        return None
    # Most engines have none: starts are faster without the import.
    from jaxllm.engine.features.logits_processors import Processing

    return Processing(resolved)


def make_adapters(resolved: ResolvedConfig, runner: Runner) -> "Adapters[Request] | None":
    """The LoRA adapters, or None where the engine takes none."""
    if resolved.adapters is None:
        return None
    # Most engines have none: starts are faster without the import.
    from jaxllm.adapters.reading import adapters_of

    return adapters_of(resolved, runner.set_adapter)


def make_media(
    resolved: ResolvedConfig,
    runner: Runner,
    scheduler: "Scheduler | ShardedScheduler",
    faults: "Faults",
    num_pages: int,
) -> "EncodedMedia | None":
    """What encodes images or sound, or None where the engine takes neither."""
    if not resolved.sees_images and not resolved.model.has_cross_attention:
        return None
    # Most engines take neither: starts are faster without the import.
    from jaxllm.engine.features.make_media import media_of

    return media_of(resolved, runner, scheduler, faults, num_pages)


def step_estimates(resolved: ResolvedConfig, runner: Runner) -> "tuple[dict[int, float], StepWork | None]":
    """How long a step of each size takes according to the plan, empty on CPUs; and what counts the work of steps.

    The second is None unless it is asked for.
    """
    counts = resolved.config.profiling.enable_mfu_metrics
    if resolved.platform == "cpu" and not counts:
        return {}, None
    work = make_step_work(resolved, runner) if counts else None
    if resolved.platform == "cpu":
        return {}, work
    parts, (step_times, _) = zip(resolved.stage_configs, runner.calls.every, strict=True), _planning()
    found = [step_times.planned_step_seconds(part, calls.parameters, runner.buckets) for part, calls in parts]
    # As many steps are under way as there are stages: one ends as often as the slowest stage does one.
    return {tokens: max(each[tokens] for each in found) for tokens in found[0]}, work


def make_step_work(resolved: ResolvedConfig, runner: Runner) -> "StepWork":
    """What counts the work of the engine's steps."""
    _, step_work = _planning()
    work: StepWork = step_work.StepWork(resolved, [calls.parameters for calls in runner.calls.every])
    return work


def _planning() -> tuple[Any, Any]:
    # Only here: a start on CPU need not wait for the import.
    from jaxllm.planning import step_times, step_work

    return step_times, step_work


def describe_stages(resolved: ResolvedConfig, runner: Runner) -> tuple[StageInfo, ...]:
    """Layers, devices and bytes of each pipeline stage; empty where there is one."""
    parts = zip(resolved.stage_configs, runner.calls.every, strict=True)
    return tuple(
        StageInfo(
            start=part.stage.start,
            stop=part.stage.stop,
            num_devices=part.num_devices,
            weight_bytes=bytes_on_device(calls.parameters),
            cache_bytes=bytes_on_device(calls.state.kv_cache),
        )
        for part, calls in parts
        if part.stage is not None
    )
