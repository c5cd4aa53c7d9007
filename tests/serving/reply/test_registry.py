"""Formats by name, by import path, and by what a chat template shows."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from jaxllm.errors import ConfigError, RequestError
from jaxllm.serving.reply.calls import Calls, tagged_calls
from jaxllm.serving.reply.catalogue import REASONING_FORMATS, TOOL_FORMATS, FormatEntry, page_table
from jaxllm.serving.reply.compose import make_parser
from jaxllm.serving.reply.formats.hermes import Hermes
from jaxllm.serving.reply.formats.mistral import MistralNamed
from jaxllm.serving.reply.guess import Render
from jaxllm.serving.reply.lark import Lark
from jaxllm.serving.reply.parts import FunctionCall, Reply, read_whole
from jaxllm.serving.reply.registry import (
    ReplyFormats,
    guess_reasoning_format,
    guess_tool_format,
    reasoning_format,
    tool_format,
)
from jaxllm.serving.reply.source import Parsing, Source
from jaxllm.serving.text.templates.rendering import Conversation, apply
from tests.conftest import RunPython


def renderer(text: str) -> Render:
    """Renders this template, as a server does."""

    def render(messages: list[Any], *, tools: list[Any], add_generation_prompt: bool) -> str:
        given = Conversation(messages=messages, tools=tools, add_generation_prompt=add_generation_prompt)
        return apply(text, given)

    return render


class Shouting(Hermes):
    """A format that a user might bring: `CALL name!`."""

    markers = ("CALL", "!")

    def parse(self, source: Source, calls: Calls) -> Parsing[None]:
        def read(tag: str) -> Parsing[bool]:
            found = yield from source.take_until("!")
            if found is None:
                return False
            yield calls.start(found[0].strip())
            yield calls.arguments("{}")
            return True

        return tagged_calls(source, ("CALL",), read)

    def call(self, lark: Lark, name: str, schema: Mapping[str, Any]) -> str:
        return lark.text(f"CALL {name}!")


@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_every_tool_format_says_what_it_needs_to(name: str) -> None:
    made = tool_format(name)
    assert made.markers
    for marker in made.markers:
        assert not any(other != marker and other.startswith(marker) for other in made.markers), "of one `until`"


@pytest.mark.parametrize("name", REASONING_FORMATS)
def test_every_reasoning_format_says_what_it_needs_to(name: str) -> None:
    made = reasoning_format(name)
    begins, ends = made.sections
    assert begins
    assert ends
    assert made.end


def test_a_class_of_the_users_own() -> None:
    parser = make_parser(tool_format(f"{__name__}:Shouting"), new_id=lambda: "call")
    assert read_whole(parser, "I CALL home!") == Reply("I", None, [FunctionCall("call", "home", "{}")])


@pytest.mark.parametrize("name", ["os:nothing", "no.such.module:Format", "os:name"])
def test_what_is_no_class(name: str) -> None:
    with pytest.raises(ConfigError, match="tool_call_parser"):
        tool_format(name)
    with pytest.raises(ConfigError, match="reasoning_parser"):
        reasoning_format(name)


def test_unknown_names() -> None:
    with pytest.raises(ConfigError, match=r"tool_call_parser='hermess'.*did you mean 'hermes'.*qwen3_coder"):
        tool_format("hermess")
    with pytest.raises(ConfigError, match=r"reasoning_parser='r1'.*deepseek_r1"):
        reasoning_format("r1")


TURN = "{{ '<|im_start|>' + message.role + '\\n' }}"
ALL = "{% for message in messages %}" + TURN + "{CONTENT}{% if message.tool_calls %}{CALLS}{% endif %}<|im_end|>\n"
ALL += "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{START}{% endif %}"
EACH = "{% for call in message.tool_calls %}{% set f = call.function %}"
JSON = '{"name": "{{ f.name }}", "KEY": {{ f.arguments | tojson }}}'


def template(call: str, *, content: str = "{{ message.content }}", start: str = "", key: str = "arguments") -> str:
    """A chat template that writes calls so."""
    calls = f"{EACH}{call}{{% endfor %}}".replace("JSON", JSON).replace("KEY", key)
    return ALL.replace("{CONTENT}", content).replace("{CALLS}", calls).replace("{START}", start)


MARKDOWN = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{{ f.name }}\n```json\n{{ ARGUMENTS }}\n```<｜tool▁call▁end｜>"
PAIR = "{{ k }}={{ v | tojson }}{{ '' if loop.last else ', ' }}"
PYTHON = f"{{{{ f.name }}}}({{% for k, v in f.arguments.items() %}}{PAIR}{{% endfor %}})"
KIMI = "<|tool_call_begin|>{{ call.id }}<|tool_call_argument_begin|>{{ f.arguments | tojson }}<|tool_call_end|>"
ITEMS = "{% for k, v in f.arguments.items() %}<arg_key>{{ k }}</arg_key>\n<arg_value>{{ v }}</arg_value>\n{% endfor %}"
THOUGHT = "{% if message.role == 'assistant' %}<think>\n\n</think>\n\n{% endif %}{{ message.content }}"
TEXT = """{{ f.arguments | tojson | replace('"', '\\\\"') }}"""
SPELLED = f'<tool_call>{{"name": "{{{{ f.name }}}}", "arguments": "{TEXT}"}}</tool_call>'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (template("<tool_call>\nJSON\n</tool_call>"), "hermes"),
        (template("<tool_call>\nJSON\n</tool_call>", content=THOUGHT), "hermes"),
        (template("<tool_call>\nJSON\n</tool_call>", content=THOUGHT, start="<think>\n"), "hermes"),
        (template(SPELLED), "hermes"),
        (template("<tool_call>{{ f.name }}\n" + ITEMS + "</tool_call>"), "glm45"),
        (template("JSON", key="parameters"), "llama3_json"),
        (template("<|python_tag|>JSON", key="parameters"), "llama3_json"),
        (template("[TOOL_CALLS] [JSON]"), "mistral"),
        (template("[TOOL_CALLS]{{ f.name }}[ARGS]{{ f.arguments | tojson }}"), "mistral_v11"),
        (template(f"{MARKDOWN}").replace("ARGUMENTS", "f.arguments | tojson"), "deepseek_v3"),
        (template(MARKDOWN).replace("{{ ARGUMENTS }}", "{{ '' + f.arguments }}"), "deepseek_v3"),
        (template(f"<|tool_calls_section_begin|>{KIMI}<|tool_calls_section_end|>"), "kimi_k2"),
        (template("<tool_calls>[JSON]</tool_calls>"), "jamba"),
        (template("[" + PYTHON + "]"), "pythonic"),
        (template("<function_calls>" + PYTHON + "</function_calls>"), "olmo3"),
        # What no format reads back gives none away, whatever its words are.
        (template("<my_call>JSON</my_call>"), None),
        (template("{{ f.name }} <tool_call>"), None),
        ("{# <tool_call> #}{{ messages }}", None),
        ("<tool_call>{function-name}<arg_key> tool_calls", None),
        (template("{{ raise_exception('no calls here') }}<tool_call>JSON</tool_call>"), None),
        ("{{ messages", None),
        ("{{ messages.tool_calls", None),
        ("{% tool_calls %}", None),
        ("", None),
        # Words that another format has within its prompt.
        ("Write <function=f> or [ARGS] or <|python_tag|>." + template("<tool_call>\nJSON\n</tool_call>"), "hermes"),
    ],
)
def test_a_format_is_guessed_by_a_call_that_it_reads_back(text: str, expected: str | None) -> None:
    assert guess_tool_format(text, renderer(text)) == expected


def test_a_template_that_takes_too_long_is_rendered_once() -> None:
    rendered = []

    def endless(messages: list[Any], **_: Any) -> str:
        rendered.append(messages)
        raise RequestError("too long")

    assert guess_tool_format(HERMES, endless) is None
    assert len(rendered) == 1


def test_guesses(demo_folder: Path) -> None:
    text = (demo_folder / "chat_template.jinja").read_text()
    assert guess_tool_format(text, renderer(text)) == "hermes"
    assert guess_tool_format(text, None) is None
    assert guess_reasoning_format("{{ '<think>' }}") == "qwen3"
    assert guess_reasoning_format("<|channel|>analysis") == "openai"
    assert guess_reasoning_format("{{ messages }}") is None
    assert guess_reasoning_format("<think> <|tool_calls_section_begin|>") == "kimi_k2"
    assert guess_reasoning_format("<|channel>thought") == "gemma4"
    # Tags that others have in their prompts too are none of an answer's.
    assert guess_reasoning_format("<think></think><answer>") == "qwen3"
    assert guess_reasoning_format("<think> <minimax:tool_call> <response>") == "minimax_m2"
    assert guess_reasoning_format("<｜Assistant｜><think>") == "deepseek_r1"


@pytest.mark.parametrize(("page", "entries"), [("tools.md", TOOL_FORMATS), ("reasoning.md", REASONING_FORMATS)])
def test_the_documentation_has_all_formats(page: str, entries: Mapping[str, FormatEntry]) -> None:
    table = page_table(entries)
    text = (Path(__file__).resolve().parents[3] / "docs" / page).read_text()
    assert table in text, f"docs/{page} should have this table:\n{table}"


PLUGIN = """
from jaxllm.serving.reply.formats.hermes import Hermes
from jaxllm.serving.reply.formats.thinking import Thinking

TOOL_FORMATS = {"mine": Hermes}
REASONING_FORMATS = {"mine": lambda: Thinking(("<a>",), ("</a>",))}
"""


def test_formats_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(PLUGIN)
    found = ReplyFormats.choose("mine", "mine", "", tool_plugin=str(file), reasoning_plugin=str(file))
    assert isinstance(found.tools, Hermes)
    assert found.reasoning is not None
    assert found.reasoning.start == "<a>"
    with pytest.raises(ConfigError, match=r"'mime'.*did you mean 'mine'"):
        ReplyFormats.choose("mime", None, "", tool_plugin=str(file))


@pytest.mark.parametrize("content", ["TOOL_FORMATS = 5", "", "TOOL_FORMATS = {'a': 5}", "1 / 0", "def"])
def test_files_without_formats(tmp_path: Path, content: str) -> None:
    file = tmp_path / "mine.py"
    file.write_text(content)
    for wrong in (file, tmp_path / "missing.py", tmp_path / "a.txt"):
        with pytest.raises(ConfigError, match="tool_parser_plugin"):
            ReplyFormats.choose(None, None, "", tool_plugin=str(wrong))


def test_formats_are_imported_when_they_are_named(run_python: RunPython) -> None:
    ran = run_python(
        "-c",
        "import sys\n"
        "from jaxllm.serving.reply.registry import ReplyFormats\n"
        "ReplyFormats.choose('hermes', None, '')\n"
        "names = {name.rpartition('.')[2] for name in sys.modules if '.reply.formats.' in name}\n"
        "assert names == {'base', 'hermes'}, names\n",
    )
    assert ran.returncode == 0, ran.stderr


HERMES = template("<tool_call>\nJSON\n</tool_call>")


def test_names_go_before_guesses() -> None:
    chosen = ReplyFormats.choose("mistral_v11", None, f"{HERMES} <think>")
    assert isinstance(chosen.tools, MistralNamed)
    assert chosen.reasoning is not None
    assert not chosen.explicit
    assert ReplyFormats.choose(None, "granite", "").explicit
    assert isinstance(ReplyFormats.choose("mistral", None, "[TOOL_CALLS]' + name + '[ARGS]'").tools, MistralNamed)
    assert not isinstance(ReplyFormats.choose("mistral", None, "[TOOL_CALLS]").tools, MistralNamed)
    guessed = ReplyFormats.choose("auto", "auto", f"{HERMES} <think>", render=renderer(HERMES))
    assert isinstance(guessed.tools, Hermes)
    assert not guessed.explicit
    assert ReplyFormats.choose(None, None, "") == ReplyFormats()
