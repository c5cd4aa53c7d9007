"""Keys of kv_transfer_config are vLLM's: each is honoured, or refused with what to do."""

from typing import Any

import pytest

from jaxllm.config import EngineConfig, KVTransferConfig
from jaxllm.config.kv_transfer import KVTransferSettings, read_kv_transfer
from jaxllm.errors import ConfigError

ROLE = {"kv_role": "kv_both"}


def test_every_key_that_is_honoured() -> None:
    extra = {"kv_lease_duration": 60, "fetch_timeout": 2.5, "connect_timeout": 1, "max_fetches": 3,
             "max_bytes_in_flight": 1 << 24, "kv_recompute_threshold": 64, "secret_file": "/s", "peers": ["10.0.0.0/8"],
             "backends": []}  # fmt: skip
    given = {
        "kv_connector": "NixlConnector", "kv_role": "kv_consumer", "engine_id": "one", "kv_buffer_device": "cpu",
        "kv_buffer_size": 1e9, "kv_rank": None, "kv_parallel_size": 1, "kv_ip": "10.1.2.3", "kv_port": 5000,
        "kv_connector_module_path": None, "kv_connector_extra_config": extra, "kv_load_failure_policy": "fail",
    }  # fmt: skip
    assert read_kv_transfer(given) == KVTransferSettings(
        role="kv_consumer", engine_id="one", buffer_bytes=10**9, host="10.1.2.3", port=5000, fails=True,
        lease_seconds=60, fetch_timeout=2.5, connect_timeout=1, max_fetches=3, max_bytes_in_flight=1 << 24,
        recompute_threshold=64, secret_file="/s", peers=("10.0.0.0/8",),
    )  # fmt: skip
    config = EngineConfig.from_options({"model": "demo", "kv_transfer_config": KVTransferConfig(given)})
    assert config.cache.kv_transfer == read_kv_transfer(given)
    assert config.cache.copies_pages


@pytest.mark.parametrize("given", [None, {}, {"kv_connector": None, "kv_role": None}])
def test_nothing_is_transferred(given: dict[str, Any] | None) -> None:
    assert read_kv_transfer(given) is None


def test_defaults() -> None:
    one, other = read_kv_transfer(ROLE), read_kv_transfer(ROLE)
    assert one is not None
    assert other is not None
    assert (one.host, one.port, one.fails, one.lease_seconds) == ("127.0.0.1", 14579, False, 480)
    assert one.produces
    assert one.consumes
    assert one.engine_id != other.engine_id


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"kv_connector": "NixlConnector"}, "kv_role is missing"),
        ({"kv_role": "both"}, "kv_producer, kv_consumer, kv_both"),
        ({**ROLE, "kv_connector": "LMCacheConnectorV1"}, "kv_offloading_size"),
        ({**ROLE, "kv_connector": "P2pNcclConnector"}, "choose one of ZmqConnector, NixlConnector"),
        ({**ROLE, "kv_buffer_device": "cuda"}, "kv_buffer_device='cuda'"),
        ({**ROLE, "kv_buffer_size": "1GB"}, "kv_buffer_size"),
        ({**ROLE, "kv_rank": 0}, "kv_rank=0.*omit it"),
        ({**ROLE, "kv_parallel_size": 2}, "kv_parallel_size=2.*omit it"),
        ({**ROLE, "kv_connector_module_path": "a.b"}, "kv_connector_module_path"),
        ({**ROLE, "kv_port": 70000}, "kv_port"),
        ({**ROLE, "kv_ip": "0.0.0.0"}, "secret_file"),
        ({**ROLE, "kv_load_failure_policy": "ignore"}, "recompute, fail"),
        ({**ROLE, "kv_conector": "x"}, "kv_connector"),
        ({**ROLE, "kv_connector_extra_config": {"kv_lease": 3}}, "kv_lease_duration"),
        ({**ROLE, "kv_connector_extra_config": {"kv_lease_duration": -1}}, "kv_lease_duration=-1"),
        ({**ROLE, "kv_connector_extra_config": {"backends": ["UCX"]}}, "ZeroMQ"),
        ({**ROLE, "kv_connector_extra_config": {"peers": "10.0.0.0/8"}}, "list"),
        ({**ROLE, "kv_connector_extra_config": []}, "mapping"),
        ({**ROLE, "engine_id": ""}, "engine_id"),
    ],
)
def test_what_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=f"(?s)kv_transfer_config.*{said}"):
        read_kv_transfer(given)
