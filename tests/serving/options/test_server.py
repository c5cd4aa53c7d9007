from typing import Any

import pytest

from jaxllm.compat.vllm.options.environment import VARIABLES
from jaxllm.config import option_fields
from jaxllm.errors import ConfigError
from jaxllm.flags import FlagParser, add_section_flags, engine_flags, explicit_options
from jaxllm.serving.options.server import ServerOptions, from_environment, noop_flags, server_flags


def parse(*arguments: str) -> ServerOptions:
    parser = FlagParser(prog="prog")
    add_section_flags(parser, "server", ServerOptions)
    return ServerOptions(**explicit_options(parser.parse(arguments), server_flags()))


def test_no_flag_means_the_defaults() -> None:
    assert parse() == ServerOptions()


def test_names_are_those_of_vllm() -> None:
    options = parse(
        *("--host", "127.0.0.1", "--port", "0", "--api-key", "a", "b", "--served-model-name", "m", "--allowed-origins"),
        *('["https://example.org"]', "--middleware", "a.b:C", "--middleware", "d:e", "--disable-fastapi-docs"),
        *("--default-chat-template-kwargs", '{"enable_thinking": false}'),
    )
    assert (options.host, options.port, options.api_key) == ("127.0.0.1", 0, ("a", "b"))
    assert options.served_model_name == ("m",)
    assert options.allowed_origins == ("https://example.org",)
    assert options.middleware == ("a.b:C", "d:e")
    assert options.disable_docs
    assert options.default_chat_template_kwargs == {"enable_thinking": False}


def test_no_flag_is_an_option_of_the_engine_or_without_effect() -> None:
    names = {flag.name for flag in server_flags()}
    assert not names & {item.name for _, item in option_fields()}
    assert not names & {name.replace("-", "_") for name in noop_flags()}


def test_a_key_from_the_environment() -> None:
    lines: list[str] = []
    assert from_environment({"JAXLLM_API_KEY": "a, b", "PATH": "/bin"}, lines.append) == {"api_key": ("a", "b")}
    assert from_environment({"JAXLLM_API_KEY": ""}, lines.append) == {}
    assert from_environment({"JAXLLM_API_KEY": "a", "VLLM_API_KEY": "b"}, lines.append) == {"api_key": ("a",)}
    assert lines == []
    assert from_environment({"VLLM_API_KEY": "b"}, lines.append) == {"api_key": ("b",)}
    assert lines == ["VLLM_API_KEY sets --api-key; use JAXLLM_API_KEY instead"]


def test_no_variable_of_keys_opens_the_server() -> None:
    lines: list[str] = []
    assert from_environment({"JAXLLM_API_KEY": " ", "VLLM_API_KEY": "b"}, lines.append) == {"api_key": ("b",)}
    for one in (",", "a,b"):
        assert from_environment({"VLLM_API_KEY": one}, lines.append) == {"api_key": (one,)}, "vLLM has one key"
    for environ in ({"JAXLLM_API_KEY": ","}, {"JAXLLM_API_KEY": " , ", "VLLM_API_KEY": "b"}):
        with pytest.raises(ConfigError, match=r"JAXLLM_API_KEY=.* contains no value"):
            from_environment(environ, lines.append)


def test_variables_of_vllm() -> None:
    lines: list[str] = []
    environ = {
        "VLLM_LOGGING_LEVEL": "DEBUG", "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "7", "VLLM_CPU_KVCACHE_SPACE": "0.5",
        "VLLM_ATTENTION_BACKEND": "FLASH_ATTN", "VLLM_NO_USAGE_STATS": "1", "VLLM_USE_MODELSCOPE": "True",
    }  # fmt: skip
    assert from_environment(environ, lines.append) == {
        "log_level": "debug", "timeout_keep_alive": 7, "kv_cache_memory_bytes": 2**29,
        "attention_backend": "FLASH_ATTN",
    }  # fmt: skip
    assert lines[-1] == "variables of vLLM in the environment that have no effect here: VLLM_USE_MODELSCOPE"
    assert len(lines) == 5
    with pytest.raises(ConfigError, match=r"VLLM_HTTP_TIMEOUT_KEEP_ALIVE='soon'.* --timeout-keep-alive"):
        from_environment({"VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "soon"}, lines.append)
    with pytest.raises(ConfigError, match="VLLM_CPU_KVCACHE_SPACE='inf'"):
        from_environment({"VLLM_CPU_KVCACHE_SPACE": "inf"}, lines.append)
    assert from_environment({"VLLM_LOGGING_LEVEL": "WARN"}, lines.append) == {"log_level": "warning"}
    known = {flag.name for flag in (*server_flags(), *engine_flags())}
    assert {variable.option for variable in VARIABLES.values()} <= known


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"port": 70000}, "port=70000: must be 0 to 65535"),
        ({"ssl_keyfile": "key.pem"}, "ssl_keyfile requires ssl_certfile"),
        ({"root_path": "llm"}, "must begin with /"),
        ({"metrics_prefix": "my-llm"}, "must consist of letters, digits and underscores"),
        ({"api_key": ("a", " ")}, "api_key: values must not be blank"),
        ({"middleware": ("module",)}, "must have the form module:attribute"),
        ({"log_format": "jason"}, "did you mean 'json'"),
        ({"shutdown_timeout": -1.0}, "must be at least 0"),
    ],
)
def test_wrong_values(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ServerOptions(**options)
