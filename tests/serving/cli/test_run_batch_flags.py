"""Options of `jaxllm run-batch` from a file."""

from pathlib import Path

import pytest

from jaxllm.config import EngineConfig
from jaxllm.errors import ConfigError
from jaxllm.flags import FlagParser
from jaxllm.serving.cli import run_batch
from jaxllm.serving.options.server import ServerOptions


def parse(*arguments: str) -> tuple[EngineConfig, ServerOptions]:
    parser = FlagParser(prog="run-batch")
    run_batch.add_arguments(parser)
    return run_batch.configuration(parser.parse(["-i", "in", "-o", "out", *arguments]))


def test_the_file_of_a_server_will_do(tmp_path: Path) -> None:
    file = tmp_path / "server.yaml"
    file.write_text("model: folder\nmax-model-len: 8k\nport: 9000\napi-key: secret\nresponse-role: helper\n")
    config, options = parse("--config", str(file), "--max-model-len", "4k")
    assert (config.model.model, config.model.max_model_len) == ("folder", 4000)
    assert (options.response_role, options.port, options.api_key) == ("helper", ServerOptions().port, ())
    assert options.max_stored_responses == 0
    assert parse()[0] == EngineConfig()


def test_unknown_flags_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "server.yaml"
    file.write_text("max-modle-len: 8\n")
    with pytest.raises(ConfigError, match="did you mean 'max_model_len'"):
        parse("--config", str(file))
