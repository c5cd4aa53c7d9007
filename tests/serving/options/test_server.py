from typing import Any

import pytest

from jaxllm.config import option_fields
from jaxllm.errors import ConfigError
from jaxllm.flags import FlagParser, add_section_flags, given_options
from jaxllm.serving.options.foreign import meaningless_flags
from jaxllm.serving.options.server import ServerOptions, from_environment, server_flags


def parse(*arguments: str) -> ServerOptions:
    parser = FlagParser(prog="prog")
    add_section_flags(parser, "server", ServerOptions)
    return ServerOptions(**given_options(parser.parse(arguments), server_flags()))


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
    assert not names & {name.replace("-", "_") for name in meaningless_flags()}


def test_a_key_from_the_environment() -> None:
    lines: list[str] = []
    assert from_environment({"JAXLLM_API_KEY": "a, b", "PATH": "/bin"}, lines.append) == {"api_key": ("a", "b")}
    assert from_environment({"JAXLLM_API_KEY": ""}, lines.append) == {}
    assert from_environment({"JAXLLM_API_KEY": "a", "VLLM_API_KEY": "b"}, lines.append) == {"api_key": ("a",)}
    assert lines == []
    assert from_environment({"VLLM_API_KEY": "b"}, lines.append) == {"api_key": ("b",)}
    assert lines == ["VLLM_API_KEY gives --api-key; the name for this server is JAXLLM_API_KEY"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"port": 70000}, "port=70000: must be 0 to 65535"),
        ({"ssl_keyfile": "key.pem"}, "give ssl_certfile too"),
        ({"root_path": "llm"}, "must begin with /"),
        ({"metrics_prefix": "my-llm"}, "must be letters, digits and underscores"),
        ({"api_key": ("a", " ")}, "api_key: an empty text"),
        ({"middleware": ("module",)}, "must look like module:attribute"),
        ({"log_format": "jason"}, "did you mean 'json'"),
        ({"shutdown_timeout": -1.0}, "must be at least 0"),
    ],
)
def test_wrong_values(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ServerOptions(**options)
