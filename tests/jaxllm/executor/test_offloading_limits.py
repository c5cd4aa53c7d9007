"""Engines that cannot have copies of their pages say so, and why."""

from typing import Any

import pytest

from jaxllm.config import EngineConfig
from jaxllm.errors import ConfigError
from jaxllm.executor.offloading_limits import check_offloading
from jaxllm.executor.resolve import resolve_config


@pytest.mark.parametrize("options", [{"kv_offloading_size": 1}, {"kv_transfer_config": {"kv_role": "kv_both"}}])
def test_several_hosts(options: dict[str, Any]) -> None:
    resolved = resolve_config(EngineConfig.from_options(options))
    check_offloading(resolved, 1)
    with pytest.raises(ConfigError, match=f"{next(iter(options))}: not supported by engines on several hosts"):
        check_offloading(resolved, 2)
