"""`jaxllm serve` reads flags, file and environment. The running one: `tests/serving/server/test_server.py`."""

from pathlib import Path

import pytest

from jaxllm.config import EngineConfig
from jaxllm.errors import ConfigError
from jaxllm.flags import FlagParser
from jaxllm.serving.cli import serve
from jaxllm.serving.options.server import ServerOptions, noop_flags


def parse(*arguments: str) -> tuple[EngineConfig, ServerOptions]:
    parser = FlagParser(prog="jaxllm serve")
    serve.add_arguments(parser)
    return serve.configuration(parser.parse(arguments))


@pytest.fixture(autouse=True)
def _no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAXLLM_API_KEY", raising=False)


def write(folder: Path, text: str) -> str:
    file = folder / "server.yaml"
    file.write_text(text)
    return str(file)


def test_nothing_given_means_the_defaults() -> None:
    assert parse() == (EngineConfig(), ServerOptions())


@pytest.mark.parametrize(
    "arguments", [["folder", "--port", "1"], ["--port", "1", "folder"], ["--port=1", "--model", "folder"]]
)
def test_the_model_stands_alone_or_behind_its_flag(arguments: list[str]) -> None:
    config, options = parse(*arguments)
    assert (config.model.model, options.port) == ("folder", 1)


def test_two_models_are_refused() -> None:
    assert parse("a", "--model", "a")[0].model.model == "a"
    with pytest.raises(ConfigError, match="the model is given twice: 'a' and --model 'b'"):
        parse("a", "--model", "b")


def test_flags_of_engine_and_server() -> None:
    config, options = parse("--max_num_seqs", "3", "--api-key", "x", "y", "--no-enable-prefix-caching")
    assert (config.scheduler.max_num_seqs, config.cache.enable_prefix_caching) == (3, False)
    assert options.api_key == ("x", "y")


def test_a_file_of_flags(tmp_path: Path) -> None:
    name = write(
        tmp_path,
        "model: folder\nmax-model-len: 8k\nmax_num_seqs: 7\nserved-model-name: [a, b]\napi-key: 1234\n"
        "device: cpu\ntensor-parallel-size: auto\n"
        "disable-fastapi-docs: true\nstep-timeout: 1e3\ndefault-chat-template-kwargs: {enable_thinking: false}\n",
    )
    config, options = parse("--config", name, "--max-num-seqs", "9", "--served-model-name", "c")
    assert (config.model.model, config.model.max_model_len, config.scheduler.max_num_seqs) == ("folder", 8000, 9)
    assert (options.served_model_name, options.api_key, options.step_timeout) == (("c",), ("1234",), 1000.0)
    assert (config.parallel.device, config.parallel.tensor_parallel_size) == ("cpu", "auto")
    assert options.disable_docs
    assert options.default_chat_template_kwargs == {"enable_thinking": False}
    assert parse("other", "--config", name)[0].model.model == "other"
    assert parse("--config", write(tmp_path, "")) == (EngineConfig(), ServerOptions())


def test_a_file_in_the_forms_of_vllm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = write(
        tmp_path,
        "max-model-len: auto\ndtype: half\nhf-overrides.a.b: 1\nhf-overrides.a.c: 2\nattention-backend: FLASH_ATTN\n"
        "disable-prefix-caching: true\nattention-config: {backend: xla}\nlogging-config: {log_level: WARNING}\n"
        "quantization: null\nenable-lora: false\ncompilation-config.level: 3\nseed: null\n",
    )
    config, options = parse("--config", name)
    assert config.model.hf_overrides == {"a": {"b": 1, "c": 2}}
    assert (config.model.dtype, config.model.max_model_len, config.model.seed) == ("float16", None, 0)
    assert (config.cache.enable_prefix_caching, options.log_level) == (False, "warning")
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[2].partition("=")[0] for line in lines] == ["compilation_config", "attention_backend"]
    assert parse("--logging-config.formatter", "json")[1].log_format == "json"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max-modle-len: 8", "unknown option 'max-modle-len'; did you mean 'max_model_len'"),
        ("max-model-len: many", "max-model-len: 'many' is not an integer"),
        ("max-model-len: [1]", "expected int"),
        ("step-timeout: soon", "'soon' is not a number"),
        ("port: true", "port=True: expected int"),
        ("- port", "expected a mapping with lines 'flag: value', got a list"),
        ("a: b: c", "not valid YAML"),
    ],
)
def test_wrong_files(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        parse("--config", write(tmp_path, text))


def test_no_file() -> None:
    with pytest.raises(ConfigError, match=r"cannot read --config: .*absent"):
        parse("--config", "absent.yaml")


def test_the_key_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAXLLM_API_KEY", "secret")
    assert parse()[1].api_key == ("secret",)
    assert parse("--config", write(tmp_path, "api-key: from-file"))[1].api_key == ("from-file",)
    assert parse("--api-key", "given")[1].api_key == ("given",)
    monkeypatch.delenv("JAXLLM_API_KEY")
    monkeypatch.setenv("VLLM_API_KEY", "theirs")
    assert parse()[1].api_key == ("theirs",)
    for wrong in (["--api-key", "[]"], *(["--config", write(tmp_path, text)] for text in ("api-key: []", "api-key:"))):
        with pytest.raises(ConfigError, match="contains no key"):
            parse(*wrong)


def test_flags_of_vllm_without_effect(capsys: pytest.CaptureFixture[str]) -> None:
    _, options = parse("--disable-log-requests", "--uvicorn-log-level", "debug", "--disable-log-stats", "--port", "1")
    assert (options.port, options.disable_log_stats) == (1, True)
    first, second = capsys.readouterr().err.splitlines()
    assert first == f"jaxllm serve: --disable-log-requests has no effect: {noop_flags()['disable-log-requests'].reason}"
    assert second.startswith("jaxllm serve: --uvicorn-log-level has no effect: ")
