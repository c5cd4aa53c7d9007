"""Operators configure reasoning in vLLM's words."""

from typing import Any

import pytest

from jaxllm.errors import ConfigError
from jaxllm.serving.options.server import ServerOptions
from jaxllm.serving.reply.compose import make_parser
from jaxllm.serving.reply.parts import fold
from jaxllm.serving.reply.registry import ReplyFormats

TAGS = {"reasoning_start_str": "<plan>", "reasoning_end_str": "</plan>"}


def formats(template: str = "", parser: str | None = None, **given: Any) -> ReplyFormats:
    return ReplyFormats.of(ServerOptions(reasoning_config=given, reasoning_parser=parser), template)


def test_tags_of_a_model_that_is_not_known() -> None:
    found = formats(**TAGS)
    assert found.explicit
    assert found.reasoning is not None
    parser = make_parser(None, found.reasoning, schemas={}, inside=False)
    reply = fold([*parser.push("<plan>first this</plan>then that"), *parser.finish()])
    assert (reply.reasoning, reply.content) == ("first this", "then that")


def test_the_parser_of_the_configuration_and_of_the_flag() -> None:
    named = formats(reasoning_parser="seed_oss")
    assert named.reasoning is not None
    assert named.reasoning.end == "</seed:think>"
    assert named.explicit
    both = formats(parser="qwen3", reasoning_parser="seed_oss")
    assert both.reasoning is not None
    assert both.reasoning.end == "</think>"


@pytest.mark.parametrize("end", ["</think>", "I must answer now.\n</think>", "enough\n</think>\n\n"])
def test_words_before_the_end_of_a_known_format(end: str) -> None:
    found = formats("<think>", reasoning_start_str="<think>", reasoning_end_str=end)
    assert found.closing == end
    assert found.reasoning is not None
    assert found.reasoning.end == "</think>"


def test_nothing_is_said() -> None:
    assert formats() == ReplyFormats()
    assert formats(reasoning_parser="", reasoning_start_str="", reasoning_end_str="") == ReplyFormats()
    assert formats(suppress_eos_in_reasoning=False) == ReplyFormats()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"reasoning_start": "<a>"}, "did you mean 'reasoning_start_str'"),
        ({"reasoning_start_str": 7}, "must be a string"),
        ({"reasoning_start_str": "<a>"}, "give reasoning_start_str and reasoning_end_str"),
        ({"reasoning_end_str": "</a>"}, "give reasoning_start_str and reasoning_end_str"),
        ({"reasoning_parser": "qwen9"}, "unknown format"),
        ({"reasoning_parser": "qwen3", "reasoning_end_str": "</a>"}, "must end with '</think>'"),
        ({"suppress_eos_in_reasoning": True}, "is not supported"),
    ],
)
def test_what_is_wrong_is_said(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        formats(**given)
