"""The formats by name, and which one a model writes."""

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeAlias

from jaxllm.errors import ConfigError, nearest
from jaxllm.serving.options.server import ServerOptions
from jaxllm.serving.reply.catalogue import REASONING_FORMATS, TOOL_FORMATS, FormatEntry
from jaxllm.serving.reply.formats.base import ReasoningFormat, ToolFormat
from jaxllm.serving.reply.guess import Render, format_of_calls
from jaxllm.serving.reply.reasoning_config import NOTHING_SAID, ReasoningConfig

_FORMATS = "jaxllm.serving.reply.formats"

# ruff: noqa: RUF001  (DeepSeek's tokens are written with a wide bar)
_REASONING_SIGNS: Final = (
    ("<|channel|>", "openai"),
    ("<|channel>", "gemma4"),
    ("[THINK]", "mistral"),
    ("<|content_thinking|>", "inkling"),
    ("<|open|>think", "kimi_k3"),
    ("<|START_THINKING|>", "cohere_command3"),
    ("<seed:think>", "seed_oss"),
    ("<mm:think>", "minimax_m3"),
    ("<ifm|think>", "k2_horizon"),
    ("plamo:begin_think", "plamo3"),
    ("thought process", "granite"),
    ("<think>", "qwen3"),
)

_MORE_REASONING_SIGNS: Final = (
    ("<|tool_calls_section_begin|>", "kimi_k2"),
    ("<arg_key>", "glm45"),
    ("<minimax:tool_call>", "minimax_m2"),
    ("<|extra_0|>", "hunyuan_a13b"),
    ("think_mode=", "ernie45"),
    ("｜DSML｜tool_calls", "deepseek_v4"),
)
"""What tells those apart that have Qwen's tags."""

AUTO: Final = "auto"
"""Names the format that the chat template shows."""

Plugin: TypeAlias = Mapping[str, Callable[[], Any]]
"""Formats of a user's own, by name."""


@dataclass(frozen=True)
class ReplyFormats:
    """How the model of a server writes calls and reasons; None: not, as far as is known.

    `explicit`: the operator says that the model reasons.
    """

    tools: ToolFormat | None = None
    reasoning: ReasoningFormat | None = None
    explicit: bool = False
    closing: str = ""
    """The text that ends reasoning whose budget is used up, where that is more than the mark that ends it."""

    @classmethod
    def of(cls, options: ServerOptions, template: str, render: Render | None = None) -> "ReplyFormats":
        """The formats that options name or this chat template shows, which `render` renders. Raises `ConfigError`."""
        return cls.choose(
            options.tool_call_parser,
            options.reasoning_parser,
            template,
            tool_plugin=options.tool_parser_plugin,
            reasoning_plugin=options.reasoning_parser_plugin,
            config=ReasoningConfig.of(options.reasoning_config),
            render=render,
        )

    @classmethod
    def choose(
        cls,
        tools: str | None,
        reasoning: str | None,
        template: str,
        *,
        tool_plugin: str | None = None,
        reasoning_plugin: str | None = None,
        config: ReasoningConfig = NOTHING_SAID,
        render: Render | None = None,
    ) -> "ReplyFormats":
        """Formats by name, or by the chat template where no name, or `auto`, is given. Raises `ConfigError`.

        `config` completes what is said of reasoning.

        Plugins are files of Python with further formats by name: `TOOL_FORMATS` and `REASONING_FORMATS`.
        `render` renders the template; without it, the format of calls is not guessed.
        """
        reasoning = reasoning or config.parser or None
        more_tools = load_plugin(tool_plugin, "tool_parser_plugin", "TOOL_FORMATS")
        more_reasoning = load_plugin(reasoning_plugin, "reasoning_parser_plugin", "REASONING_FORMATS")
        tool_name = guess_tool_format(template, render) if tools in (None, AUTO) else tools
        if tool_name == "mistral" and "[ARGS]" in template:
            # vLLM has one name for both of Mistral's.
            tool_name = "mistral_v11"
        reasoning_name = guess_reasoning_format(template) if reasoning in (None, AUTO) else reasoning
        known = None if reasoning_name is None else reasoning_format(reasoning_name, more_reasoning)
        return cls(
            None if tool_name is None else tool_format(tool_name, more_tools),
            config.completed(known),
            explicit=reasoning not in (None, AUTO) or (known is None and bool(config.start)),
            closing=config.end,
        )


def tool_format(name: str, more: Plugin | None = None) -> ToolFormat:
    """The format of this name, or of a class as `module:attribute`. Raises `ConfigError`."""
    made: ToolFormat = _make(name, "tool_call_parser", TOOL_FORMATS, more or {})
    return made


def reasoning_format(name: str, more: Plugin | None = None) -> ReasoningFormat:
    """The format of this name, or of a class as `module:attribute`. Raises `ConfigError`."""
    made: ReasoningFormat = _make(name, "reasoning_parser", REASONING_FORMATS, more or {})
    return made


def _make(name: str, option: str, known: Mapping[str, FormatEntry], more: Plugin) -> Any:
    if name in more:
        return more[name]()
    if ":" in name:
        return _import(name, option)()
    if name not in known:
        raise _unknown(option, name, {**known, **more})
    return _import(f"{_FORMATS}.{known[name].path}", option)()


def load_plugin(file: str | None, option: str, attribute: str) -> Plugin:
    """The formats that a file of Python has under this name; none, if there is no file. Raises `ConfigError`."""
    if file is None:
        return {}
    found = getattr(_run_file(file, option), attribute, None)
    if not isinstance(found, Mapping) or not all(callable(each) for each in found.values()):
        raise ConfigError(
            f"{option}={file!r}: the file must define {attribute}, a dictionary from format names to classes or "
            "functions"
        )
    return found


def _run_file(file: str, option: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"jaxllm_plugin_{Path(file).stem}", file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{option}={file!r}: not a Python file (its name must end in .py)")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    # It is a program of somebody else's: it raises what it likes.
    except Exception as error:
        raise ConfigError(f"{option}={file!r}: cannot load it: {error}") from error
    return module


def guess_tool_format(template: str, render: Render | None) -> str | None:
    """The name of the format in which a chat template writes calls; None: in none that is known.

    `render` renders the template; without it, nothing can be found out.
    """
    if render is None or "tool_calls" not in template:
        return None
    name = guess_reasoning_format(template)
    reasoning = None if name is None else reasoning_format(name)
    return format_of_calls(render, tool_format, reasoning)


def guess_reasoning_format(template: str) -> str | None:
    """The name of the format in which a chat template's model reasons; None: it does not, as far as can be seen."""
    found = next((name for sign, name in _REASONING_SIGNS if sign in template), None)
    if found != "qwen3":
        return found
    more = next((name for sign, name in _MORE_REASONING_SIGNS if sign in template), None)
    if more is not None:
        return more
    # DeepSeek's tokens are written with a wide bar, which no other template has.
    return "deepseek_r1" if "<｜Assistant｜>" in template and "thinking" not in template else found


def _unknown(option: str, name: str, known: Mapping[str, object]) -> ConfigError:
    names = ", ".join(known)
    return ConfigError(
        f"{option}={name!r}: unknown format{nearest(name, known)}; give one of {names}, or a class as module:attribute"
    )


def _import(path: str, option: str) -> Callable[[], Any]:
    module, _, attribute = path.partition(":")
    try:
        found: Any = reduce(getattr, attribute.split("."), importlib.import_module(module))
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{option}={path!r}: cannot import it: {error}") from error
    if not callable(found):
        raise ConfigError(f"{option}={path!r}: neither a class nor a function")
    return found
