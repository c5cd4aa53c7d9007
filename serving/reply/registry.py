"""The formats by name, and which one a model writes."""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

from jaxllm.errors import ConfigError, nearest
from jaxllm.serving.reply.formats import thinking
from jaxllm.serving.reply.formats.base import ReasoningFormat, ToolFormat
from jaxllm.serving.reply.formats.deepseek import DeepSeekV3, DeepSeekV31
from jaxllm.serving.reply.formats.granite import Granite
from jaxllm.serving.reply.formats.harmony import Harmony
from jaxllm.serving.reply.formats.hermes import Hermes
from jaxllm.serving.reply.formats.llama import Llama3Json
from jaxllm.serving.reply.formats.mistral import Mistral, MistralNamed
from jaxllm.serving.reply.formats.pythonic import Pythonic
from jaxllm.serving.reply.formats.qwen3_coder import Qwen3Coder

TOOL_FORMATS: Final[Mapping[str, Callable[[], ToolFormat]]] = {
    "deepseek_v3": DeepSeekV3,
    "deepseek_v31": DeepSeekV31,
    "granite": Granite,
    "hermes": Hermes,
    "llama3_json": Llama3Json,
    "llama4_pythonic": Pythonic,
    "mistral": Mistral,
    "mistral_v11": MistralNamed,
    "openai": Harmony,
    "pythonic": Pythonic,
    "qwen3_coder": Qwen3Coder,
}

REASONING_FORMATS: Final[Mapping[str, Callable[[], ReasoningFormat]]] = {
    "deepseek_r1": lambda: thinking.think(always=True),
    "granite": thinking.granite,
    "mistral": thinking.mistral,
    "openai": Harmony,
    "openai_gptoss": Harmony,
    "qwen3": thinking.think,
}

_TOOL_SIGNS: Final = (
    ("<arg_key>", None),  # GLM: its tags are those of hermes, with something else inside
    ("<|channel|>", "openai"),
    ("<function=", "qwen3_coder"),
    ("<｜tool▁sep｜>", "deepseek_v3"),  # noqa: RUF001  (the tokens are written with a wide bar)
    ("[ARGS]", "mistral_v11"),
    ("[TOOL_CALLS]", "mistral"),
    ("<|tool_call|>", "granite"),
    ("<tool_call>", "hermes"),
    ("<|python_start|>", "pythonic"),
    ('"parameters": dictionary of argument', "llama3_json"),
    ("<|python_tag|>", "llama3_json"),
    ("[func_name1(params_name1=", "pythonic"),
)
"""What in a chat template, or among a tokenizer's tokens, gives a format away; the first decides."""

_REASONING_SIGNS: Final = (
    ("<|channel|>", "openai"),
    ("[THINK]", "mistral"),
    ("thought process", "granite"),
    ("<think>", "qwen3"),
)


@dataclass(frozen=True)
class ReplyFormats:
    """How the model of a server writes calls and reasons; None: not, as far as is known.

    `explicit`: the operator says that the model reasons.
    """

    tools: ToolFormat | None = None
    reasoning: ReasoningFormat | None = None
    explicit: bool = False

    @classmethod
    def choose(cls, tools: str | None, reasoning: str | None, template: str) -> "ReplyFormats":
        """Formats by name, or by the chat template where no name is given. Raises `ConfigError`."""
        tool_name = guess_tool_format(template) if tools is None else tools
        reasoning_name = guess_reasoning_format(template) if reasoning is None else reasoning
        return cls(
            None if tool_name is None else tool_format(tool_name),
            None if reasoning_name is None else reasoning_format(reasoning_name),
            explicit=reasoning is not None,
        )


def tool_format(name: str) -> ToolFormat:
    """The format of this name, or of a class as `module:attribute`. Raises `ConfigError`."""
    if ":" in name:
        made: ToolFormat = _import(name, "tool_call_parser")()
        return made
    if name not in TOOL_FORMATS:
        raise _unknown("tool_call_parser", name, TOOL_FORMATS)
    return TOOL_FORMATS[name]()


def reasoning_format(name: str) -> ReasoningFormat:
    """The format of this name, or of a class as `module:attribute`. Raises `ConfigError`."""
    if ":" in name:
        made: ReasoningFormat = _import(name, "reasoning_parser")()
        return made
    if name not in REASONING_FORMATS:
        raise _unknown("reasoning_parser", name, REASONING_FORMATS)
    return REASONING_FORMATS[name]()


def guess_tool_format(template: str) -> str | None:
    """The name of the format that a chat template shows its model; None: it shows none that is known."""
    found = next((name for sign, name in _TOOL_SIGNS if sign in template), None)
    # DeepSeek's newer template has the older one's tokens without its block of Markdown.
    return "deepseek_v31" if found == "deepseek_v3" and "```json" not in template else found


def guess_reasoning_format(template: str) -> str | None:
    """The name of the format in which a chat template's model reasons; None: it does not, as far as can be seen."""
    found = next((name for sign, name in _REASONING_SIGNS if sign in template), None)
    # DeepSeek's tokens are written with a wide bar, which no other template has.
    deepseek = "<｜Assistant｜>" in template and "thinking" not in template  # noqa: RUF001
    return "deepseek_r1" if found == "qwen3" and deepseek else found


def _unknown(option: str, name: str, known: Mapping[str, object]) -> ConfigError:
    names = ", ".join(known)
    return ConfigError(
        f"{option}={name!r}: no such format{nearest(name, known)}; give one of {names}, or a class as module:attribute"
    )


def _import(path: str, option: str) -> Callable[[], Any]:
    module, _, attribute = path.partition(":")
    try:
        found: Any = reduce(getattr, attribute.split("."), importlib.import_module(module))
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{option}={path!r}: cannot be imported: {error}") from error
    if not callable(found):
        raise ConfigError(f"{option}={path!r}: neither a class nor a function")
    return found
