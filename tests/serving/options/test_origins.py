from pathlib import Path

import pytest

from jaxllm.flags import FlagParser
from jaxllm.serving.cli import serve
from jaxllm.serving.options.origins import NO_ORIGINS, Origins

COMPUTED = {"max_model_len": 2048, "max_num_seqs": 64, "max_num_batched_tokens": 512, "block_size": 16}


def read(*arguments: str) -> Origins:
    parser = FlagParser(prog="serve")
    serve.add_arguments(parser)
    return serve.read_options(parser.parse(arguments))[0]


def test_each_setting_is_in_the_row_of_the_strongest_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "server.yaml"
    file.write_text("preset: throughput\nmax-num-seqs: 100\nport: 9000\n", encoding="utf-8")
    monkeypatch.setenv("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "7")
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "debug")
    rows = dict(read("demo", "--config", str(file), "--port", "0", "--log-level", "info").rows(COMPUTED))
    assert rows == {
        "preset throughput": "stream-interval 8",
        "environment": "timeout-keep-alive 7",
        "server.yaml": "preset throughput, max-num-seqs 100",
        "flags": "port 0, log-level info, model demo",
        "computed": "max-model-len 2048, max-num-batched-tokens 512, block-size 16",
    }


def test_the_configuration_follows_the_same_order(tmp_path: Path) -> None:
    file = tmp_path / "server.yaml"
    file.write_text("preset: throughput\nmax-num-seqs: 100\n", encoding="utf-8")
    parser = FlagParser(prog="serve")
    serve.add_arguments(parser)
    config, _ = serve.configuration(parser.parse(["--config", str(file), "--preset", "latency"]))
    assert config.preset.preset == "latency"
    assert (config.scheduler.max_num_seqs, config.scheduler.max_num_batched_tokens) == (100, 512)


def test_secrets_and_maps_are_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    text = str(dict(read("--api-key", "secret", "--no-ui", "--reasoning-config.a", "hidden").rows({})))
    assert "api-key (not shown)" in text
    assert "no-ui" in text
    assert "secret" not in text
    assert "hidden" not in text


def test_nothing_is_said_of_nothing() -> None:
    assert list(NO_ORIGINS.rows(COMPUTED)) == []
