"""The keys of `kv_events_config`."""

from typing import Any

import pytest

from jaxllm.config import EngineConfig
from jaxllm.config.kv_events import KVEventsSettings, read_kv_events
from jaxllm.engine.assembly import resolve_on_devices
from jaxllm.errors import ConfigError


@pytest.mark.parametrize("given", [None, {}, {"enable_kv_cache_events": False, "publisher": "zmq"}])
def test_nothing_is_published_unless_asked_for(given: dict[str, Any] | None) -> None:
    assert read_kv_events(given) is None


def test_vllms_defaults() -> None:
    assert read_kv_events({"enable_kv_cache_events": True}) == KVEventsSettings()
    assert read_kv_events({"enable_kv_cache_events": True, "publisher": "null"}) is None
    found = read_kv_events({"enable_kv_cache_events": True, "topic": "kv", "hwm": 7, "replay_endpoint": "tcp://*:1"})
    assert found == KVEventsSettings(topic="kv", hwm=7, replay_endpoint="tcp://*:1")


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("enable_kv_cache_event", True, "did you mean 'enable_kv_cache_events'"),
        ("enable_kv_cache_events", "yes", "must be true or false"),
        ("publisher", "nats", "choose zmq or null"),
        ("endpoint", "5557", "must be like tcp"),
        ("endpoint", "tcp://*", "ends in a port"),
        ("replay_endpoint", "tcp://*:99999", "ends in a port"),
        ("topic", 3, "must be text"),
        ("hwm", -1, "must be an integer from 0"),
        ("max_queue_size", 0, "must be an integer from 1"),
        ("buffer_steps", True, "must be an integer from 0"),
    ],
)
def test_what_is_wrong_is_named(key: str, value: Any, problem: str) -> None:
    config = EngineConfig.from_options({"kv_events_config": {key: value}})
    with pytest.raises(ConfigError, match=f"kv_events_config: .*{problem}"):
        resolve_on_devices(config)
