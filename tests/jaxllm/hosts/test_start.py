"""Processes of several hosts do not listen to everybody."""

import pytest

from jaxllm.config import DistributedOptions, EngineConfig
from jaxllm.errors import ConfigError
from jaxllm.hosts.placement import Placement
from jaxllm.hosts.start import SECRET, join, secret_of


@pytest.mark.parametrize("address", ["10.0.0.7", "host-a", "fd00::1"])
def test_what_others_can_reach_needs_a_secret(address: str) -> None:
    place, nothing = Placement(2, 0, address, 29501, "options"), DistributedOptions()
    with pytest.raises(ConfigError, match=f"master_addr='{address}'.*set {SECRET}"):
        secret_of(nothing, place, {})
    assert secret_of(nothing, place, {SECRET: "known to all"}) == "known to all"
    assert secret_of(DistributedOptions(distributed_secret="mine"), place, {SECRET: "known to all"}) == "mine"


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "localhost"])
def test_one_machine_needs_none(address: str) -> None:
    assert secret_of(DistributedOptions(), Placement(2, 0, address, 29501, "options"), {}) is None


@pytest.mark.parametrize("rank", [0, 1])
def test_stages_on_several_hosts_are_refused_before_anybody_waits(rank: int) -> None:
    options = {"pipeline_parallel_size": 2, "nnodes": 2, "node_rank": rank}
    with pytest.raises(ConfigError, match="=2: all stages must be in one process, but nnodes=2"):
        join(EngineConfig.from_options(options), {})
