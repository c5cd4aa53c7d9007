"""Which engines cannot have copies of their pages on the host."""

from jaxllm.errors import ConfigError
from jaxllm.executor.resolved import ResolvedConfig


def check_offloading(resolved: ResolvedConfig, processes: int) -> None:
    """Raise `ConfigError` where `kv_offloading_size` is given and not supported."""
    if not resolved.config.cache.kv_offloading_size:
        return
    problem = _problem(resolved, processes)
    if problem is not None:
        raise ConfigError(f"kv_offloading_size: {problem}")


def _problem(resolved: ResolvedConfig, processes: int) -> str | None:
    if processes > 1:
        return "not supported by engines on several hosts; use tensor_parallel_size on one host"
    stages = resolved.config.parallel.pipeline_parallel_size
    if stages > 1:
        return f"not supported with pipeline_parallel_size={stages}; use tensor_parallel_size"
    if resolved.data_shards > 1:
        return "not supported by data shards of one mesh; use one engine for each of them"
    if resolved.drafter is not None:
        return "not supported with drafts from layers on the device; use ngram drafts, or omit speculative_config"
    if resolved.model.has_cross_attention:
        return f"not supported by {resolved.model.architecture}, whose prompts are short; omit it"
    if not resolved.cache_plan.depth:
        return f"not supported by {resolved.model.architecture}, which has no attention; omit it"
    return None
