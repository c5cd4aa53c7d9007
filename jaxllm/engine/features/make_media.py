"""Makes the feature that encodes media."""

from jaxllm.engine.features.encoded_media import EncodedMedia
from jaxllm.engine.features.faults import Faults
from jaxllm.engine.features.media import MediaRequests
from jaxllm.engine.features.sound import SoundRequests
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.executor.runner import Runner
from jaxllm.scheduler.scheduler import Scheduler
from jaxllm.scheduler.sharded import ShardedScheduler


def media_of(
    resolved: ResolvedConfig,
    runner: Runner,
    scheduler: "Scheduler | ShardedScheduler",
    faults: Faults,
    num_pages: int,
) -> EncodedMedia:
    """For an engine of this configuration, whose scheduler hands out `num_pages` of each data shard."""
    if resolved.model.has_cross_attention:
        return SoundRequests.of(resolved, runner, scheduler, faults, num_pages)
    return MediaRequests.of(resolved, runner, scheduler, faults)
