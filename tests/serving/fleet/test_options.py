"""Options of routers and fleets, and what each server of a fleet gets."""

import json
from pathlib import Path
from typing import Any

import pytest

from jaxllm.config import EngineConfig
from jaxllm.errors import ConfigError
from jaxllm.flags import engine_flags
from jaxllm.serving.cli.config_file import read_config
from jaxllm.serving.fleet.process import named
from jaxllm.serving.fleet.settings import FleetSettings
from jaxllm.serving.options.fleet import FleetOptions, RouteOptions
from jaxllm.serving.options.server import ServerOptions, server_flags


@pytest.mark.parametrize("text", ["1", "1:", ":1", "0:1", "1:0", "a:b", "1:1:1", "-1:1", "60:60", "1:1 "])
def test_wrong_sizes(text: str) -> None:
    with pytest.raises(ConfigError, match="such as 1:1"):
        _ = FleetOptions(disaggregate=text).fleet_sizes


def test_sizes() -> None:
    assert FleetOptions().fleet_sizes is None
    assert FleetOptions(disaggregate="2:1").fleet_sizes == (2, 1)


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({}, "at least one server"),
        ({"decode": ("10.0.0.7:8000",)}, "must be like"),
        ({"decode": ("http://a/v1",)}, "must be like"),
        ({"decode": ("http://a", "http://a")}, "twice"),
        ({"decode": ("http://a",), "prefill": ("http://a",)}, "twice"),
        ({"decode": tuple(f"http://a:{port}" for port in range(65))}, "at most 64"),
    ],
)
def test_wrong_servers(options: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ConfigError, match=wrong):
        RouteOptions(**options)


def settings(folder: Path, given: dict[str, Any], count: int = 3) -> FleetSettings:
    engine = {name: value for name, value in given.items() if name in {flag.name for flag in engine_flags()}}
    config = EngineConfig.from_options({"device": "cpu", **engine})
    return FleetSettings(given, config, ServerOptions(), folder, count)


def test_each_server_reads_what_it_gets(tmp_path: Path) -> None:
    given = {
        "model": "demo", "port": 9000, "host": "0.0.0.0", "max_model_len": 512, "api_key": ("secret",),
        "files_dir": "/files", "disaggregate": "1:2", "allowed_origins": ("*",), "max_num_queued_reqs": 5,
    }  # fmt: skip
    made = settings(tmp_path, given)
    made.write_secret("of all")
    read = []
    for number, (role, name) in enumerate([("decode", "decode-0"), ("prefill", "prefill-0")]):
        path = made.write(role, name, 7000 + number, first=number == 0)  # type: ignore[arg-type]
        assert path.stat().st_mode & 0o077 == 0
        options = read_config(str(path), (*engine_flags(), *server_flags()))
        of_server = {flag.name for flag in server_flags()}
        server = ServerOptions(**{key: value for key, value in options.items() if key in of_server})
        config = EngineConfig.from_options({key: value for key, value in options.items() if key not in of_server})
        assert (server.host, server.port, server.api_key) == ("127.0.0.1", 7000 + number, ("secret",))
        assert (server.disaggregate, server.allowed_origins, server.max_num_queued_reqs) == (None, (), None)
        assert server.files_dir == ("/files" if number == 0 else None)
        assert (config.model.model, config.model.max_model_len) == ("demo", 512)
        assert config.cache.gpu_memory_utilization == pytest.approx(0.3)
        assert config.cache.kv_events is not None
        read.append(config.cache.kv_transfer)
    assert [None if each is None else each.role for each in read] == ["kv_consumer", "kv_producer"]
    assert {None if each is None else each.secret_file for each in read} == {str(tmp_path / "secret")}
    assert (tmp_path / "secret").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "option", [{"takeover": True}, {"data_parallel_size": 2}, {"kv_events_config": {"topic": "a"}}, {"nnodes": 2}]
)
def test_what_fleets_do_not_have(option: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"cannot be combined with {next(iter(option))}"):
        settings(tmp_path, option)


def test_memory_that_was_chosen_is_that_of_each_server(tmp_path: Path) -> None:
    path = settings(tmp_path, {"num_gpu_blocks_override": 40}).write("decode", "decode-0", 7000, first=True)
    assert "gpu-memory-utilization" not in json.loads(path.read_text())


def test_folders_with_long_names(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="set TMPDIR"):
        settings(tmp_path / ("a" * 90), {})


def test_lines_of_a_log_have_the_name_of_the_server() -> None:
    assert named("INFO ready", "decode-0") == "decode-0 | INFO ready"
    assert json.loads(named('{"message": "ready"}', "decode-0")) == {"message": "ready", "server": "decode-0"}
    assert named("{not json", "decode-0") == "decode-0 | {not json"
