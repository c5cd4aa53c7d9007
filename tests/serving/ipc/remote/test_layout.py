"""The flags of data parallel have one meaning together, and say who may join."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zmq
import zmq.auth

from jaxllm import EngineConfig
from jaxllm.errors import ConfigError
from jaxllm.serving.ipc.remote.head import mismatch
from jaxllm.serving.ipc.remote.layout import arranged
from jaxllm.serving.ipc.remote.messages import Join
from jaxllm.serving.ipc.remote.security import SECRET, keys_of
from jaxllm.serving.options.server import ServerOptions
from jaxllm.version import __version__


def config(**options: Any) -> EngineConfig:
    return EngineConfig.from_options({f"data_parallel_{name}": value for name, value in options.items()})


@pytest.mark.parametrize(
    ("options", "engines", "first"),
    [
        ({"size": 4}, 4, 0),
        ({"size": 4, "size_local": 2}, 4, 0),
        ({"size": 4, "rank": 3}, 1, 3),
        ({"size": 4, "rank": 0, "external_lb": True}, 1, 0),
        ({"size": 4, "size_local": 2, "start_rank": 2}, 2, 2),
        ({"size": 4, "size_local": 2, "hybrid_lb": True}, 2, 0),
    ],
)
def test_engines_behind_this_server(options: dict[str, Any], engines: int, first: int) -> None:
    found = arranged(config(**options), headless=False).parallel
    assert (found.data_parallel_size, found.first_rank) == (engines, first)
    assert arranged(config(size=4, size_local=2, start_rank=2), headless=True).parallel.engines_here == 2


@pytest.mark.parametrize(
    ("options", "headless", "message"),
    [
        ({"size": 2, "size_local": 3}, False, "data_parallel_size_local=3: must be at most data_parallel_size=2"),
        ({"size": 2, "rank": 2}, False, "data_parallel_rank=2: must be 0 to 1"),
        ({"size": 2, "external_lb": True}, False, "requires data_parallel_rank"),
        ({"size": 2, "rank": 0, "size_local": 2}, False, "each server has one"),
        ({"size": 2, "rank": 0}, True, "omit headless"),
        ({"size": 2, "hybrid_lb": True}, False, "requires data_parallel_size_local"),
        ({"size": 2, "hybrid_lb": True, "size_local": 1}, True, "each host has a server"),
        ({"size": 2, "start_rank": 1, "size_local": 2}, False, "exceed data_parallel_size=2"),
        ({"size": 2}, True, "requires data_parallel_start_rank"),
        ({"size": 2, "start_rank": 1, "size_local": 0}, True, "of at least 1"),
        ({"size": 2, "start_rank": 63, "size_local": 2}, True, "exceeds 64"),
    ],
)
def test_flags_that_do_not_go_together(options: dict[str, Any], headless: bool, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        arranged(config(**options), headless=headless)


def test_who_does_not_fit() -> None:
    here = config(size=4, size_local=2)
    join = Join(__version__, "other", 2, 2, "/tmp/sockets", config(size=9, size_local=2, start_rank=2))
    assert mismatch(here, join) is None
    strange = EngineConfig.from_options({"model": "other/model"})
    for change, message in (
        ({"version": "0.0.1"}, "this host has jaxllm 0.0.1"),
        ({"config": strange}, "model is 'other/model' on this host, and 'demo' on the server"),
        ({"first": 1}, "other hosts must use 2 to 63"),
        ({"count": 0}, "other hosts must use"),
        ({"count": 63}, "other hosts must use"),
        ({"folder": "relative"}, "TMPDIR"),
    ):
        wrong = Join(**{**{name: getattr(join, name) for name in Join.__struct_fields__}, **change})
        assert message in str(mismatch(here, wrong))


def test_a_secret_is_needed_where_others_can_reach(tmp_path: Path) -> None:
    options, secret = ServerOptions(), {SECRET: "a secret of some length"}
    assert keys_of(options, "127.0.0.1", {}) is None
    assert keys_of(options, "::1", {}) is None
    with pytest.raises(ConfigError, match=SECRET):
        keys_of(options, "0.0.0.0", {})
    with pytest.raises(ConfigError, match="needs at least 16"):
        keys_of(options, "127.0.0.1", {SECRET: "short"})
    file = tmp_path / "secret"
    file.write_text("a secret of some length\n")
    head = keys_of(replace(options, data_parallel_secret_file=str(file)), "0.0.0.0", {})
    host = keys_of(replace(options, headless=True), "10.0.0.1", secret)
    other = keys_of(replace(options, headless=True), "10.0.0.1", {SECRET: "another secret of that length"})
    assert head is not None
    assert host is not None
    assert other is not None
    assert host.peers == {head.public}
    assert head.peers == {host.public}
    assert other.public not in head.peers
    with pytest.raises(ConfigError, match="data_parallel_secret_file"):
        keys_of(replace(options, data_parallel_secret_file=str(tmp_path / "none")), "0.0.0.0", {})


def test_keys_of_the_operators(tmp_path: Path) -> None:
    for name in ("head", "one", "two"):
        zmq.auth.create_certificates(tmp_path, name)
    options = ServerOptions(
        data_parallel_curve_key=f"{tmp_path}/head.key_secret", data_parallel_curve_peers=str(tmp_path)
    )
    head = keys_of(options, "0.0.0.0", {})
    assert head is not None
    assert len(head.peers) == 3
    host = ServerOptions(
        headless=True,
        data_parallel_curve_key=f"{tmp_path}/one.key_secret",
        data_parallel_curve_peers=f"{tmp_path}/head.key",
    )
    found = keys_of(host, "10.0.0.1", {})
    assert found is not None
    assert found.peers == {head.public}
    for change, message in (
        ({"data_parallel_curve_peers": str(tmp_path)}, "one certificate, that of the server"),
        ({"data_parallel_curve_peers": None}, "must be given together"),
        ({"data_parallel_curve_key": f"{tmp_path}/one.key"}, "no secret key"),
        ({"data_parallel_curve_key": f"{tmp_path}/none"}, "is not a certificate"),
    ):
        with pytest.raises(ConfigError, match=message):
            keys_of(replace(host, **change), "10.0.0.1", {})
