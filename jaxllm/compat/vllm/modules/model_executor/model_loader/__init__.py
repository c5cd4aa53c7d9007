"""How weights are read."""

from jaxllm.executor.weights.sharded import plan


class ShardedStateLoader:
    """The names of a saved state's files; `LLM.save_sharded_state` and `load_format` do the work."""

    TP_ONLY_PATTERN = plan.TP_ONLY_PATTERN
    PP_AND_TP_PATTERN = plan.PP_AND_TP_PATTERN


__all__ = ["ShardedStateLoader"]
