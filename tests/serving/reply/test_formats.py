"""Parsers of calls and reasoning: what they read, and that it does not matter how the text is cut."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxllm.serving.reply.catalogue import REASONING_FORMATS, TOOL_FORMATS
from jaxllm.serving.reply.compose import make_parser
from jaxllm.serving.reply.parts import (
    ContentDelta,
    FunctionCall,
    Reply,
    ReplyParser,
    ReplyPart,
    ToolCallArguments,
    ToolCallStart,
    fold,
    read_whole,
)
from jaxllm.serving.reply.registry import reasoning_format, tool_format
from jaxllm.serving.reply.source import MOST_REREAD
from tests.serving.reply.samples import (
    BEGIN,
    COMMON,
    EXPECTED,
    ONCE,
    OTHER_WAYS,
    REASONING_ONCE,
    REASONING_SAMPLES,
    SAMPLES,
    SCHEMAS,
    SEP,
    first_of,
    more_of,
)


def parser_of(tools: str | None, reasoning: str | None = None, **settings: Any) -> ReplyParser:
    """A parser whose calls have the ids call-0, call-1, ..."""
    numbers = itertools.count()
    return make_parser(
        None if tools is None else tool_format(tools),
        None if reasoning is None else reasoning_format(reasoning),
        schemas=SCHEMAS,
        new_id=lambda: f"call-{next(numbers)}",
        **settings,
    )


def stream(parser: ReplyParser, pieces: list[str]) -> list[ReplyPart]:
    parts = [part for piece in pieces for part in parser.push(piece)]
    return [*parts, *parser.finish()]


@st.composite
def cut(draw: st.DrawFn, fragments: tuple[str, ...], sample: str) -> list[str]:
    """A text that may be a sample, a broken one, or anything made of fragments; in pieces."""
    text = draw(
        st.one_of(
            st.just(sample),
            st.builds(lambda at: sample[:at], st.integers(0, len(sample))),
            st.builds(
                lambda at, length, new: sample[:at] + new + sample[at + length :],
                st.integers(0, len(sample)),
                st.integers(0, 4),
                st.sampled_from((*fragments, *COMMON, "")),
            ),
            st.lists(st.sampled_from((*fragments, *COMMON)), max_size=20).map("".join),
        )
    )
    places = sorted(draw(st.sets(st.integers(0, len(text)), max_size=len(text) + 1)))
    if draw(st.booleans()):
        places = list(range(len(text)))
    return [text[begin:end] for begin, end in zip([0, *places], [*places, len(text)], strict=True)]


@pytest.mark.parametrize("name", ONCE)
@settings(max_examples=40)
@given(data=st.data())
def test_calls_are_the_same_however_their_text_is_cut(name: str, data: st.DataObject) -> None:
    sample = data.draw(st.sampled_from(["", "I see. ", "\n"])) + SAMPLES[name]
    pieces = data.draw(cut(more_of(name), sample))
    whole = read_whole(parser_of(name), "".join(pieces))
    parts = stream(parser_of(name), pieces)
    assert fold(parts) == whole
    assert all(part != ContentDelta("") for part in parts)
    if not whole.tool_calls and not whole.reasoning and name not in ("openai", "inkling"):
        content, text = whole.content or "", "".join(pieces)
        assert text.startswith(content), "what is no call is content"
        left = text[len(content) :]
        assert not left or any(mark in left for mark in tool_format(name).markers), "to the last character, or a marker"


@pytest.mark.parametrize("name", REASONING_ONCE)
@settings(max_examples=25)
@given(data=st.data())
def test_reasoning_is_the_same_however_its_text_is_cut(name: str, data: st.DataObject) -> None:
    sample, fragments = REASONING_SAMPLES[name]
    pieces = data.draw(cut(fragments, sample))
    inside = data.draw(st.booleans())
    tools = data.draw(st.sampled_from([None, "hermes"]))
    whole = read_whole(parser_of(tools, name, inside=inside), "".join(pieces))
    assert fold(stream(parser_of(tools, name, inside=inside), pieces)) == whole


@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_samples(name: str) -> None:
    reply = read_whole(parser_of(name), SAMPLES[first_of(name)])
    assert [(call.name, json.loads(call.arguments)) for call in reply.tool_calls] == EXPECTED
    ids = {"kimi_k2": ["functions.weather:0", "functions.note:1"], "cohere_command3": ["0", "1"]}
    assert [call.id for call in reply.tool_calls] == ids.get(first_of(name), ["call-0", "call-1"])
    assert (reply.content, reply.reasoning) == (None, None)


def hostile(sample: str, size: int) -> dict[str, str]:
    """Texts that begin calls for ever, nest without end, or never end what they began."""

    def filled(cut: int, fill: str) -> str:
        return sample[:cut] + fill * ((size - cut) // len(fill))

    third = len(sample) // 3
    return {
        "beginnings": filled(0, sample[: third // 2]),
        "calls cut short": filled(0, sample[:third]),
        "nested": filled(third, '{"a":['),
        "brackets": filled(third, "["),
        "a text without end": filled(third, '\\"a'),
        "tags without end": filled(third, "</<"),
        "spaces": filled(third, " "),
    }


def check_hostile(make: Callable[[], ReplyParser], sample: str, size: int) -> None:
    for what, text in hostile(sample, size).items():
        parser = make()
        parts = stream(parser, [text[at : at + 61] for at in range(0, size, 61)])
        assert fold(parts) == read_whole(make(), text), what
        shown = sum(len(getattr(part, "text", "") or getattr(part, "arguments", "")) for part in parts)
        assert shown <= 2 * size + 1024, f"{what}: quotes and line breaks take two characters in JSON"
        source = getattr(parser, "_source", None)
        assert source is None or source.reread <= MOST_REREAD + size, what


@pytest.mark.parametrize("name", ONCE)
def test_hostile_text_is_read_to_its_end(name: str) -> None:
    check_hostile(lambda: parser_of(name), SAMPLES[name], 2000)


@pytest.mark.slow
@pytest.mark.parametrize("name", ONCE)
def test_hostile_text_of_many_pages(name: str) -> None:
    check_hostile(lambda: parser_of(name), SAMPLES[name], 2**15)


@pytest.mark.slow
@pytest.mark.parametrize("name", REASONING_ONCE)
def test_hostile_reasoning_of_many_pages(name: str) -> None:
    sample, _ = REASONING_SAMPLES[name]
    check_hostile(lambda: parser_of("hermes", name, inside=True), sample, 2**15)


def test_what_the_demos_template_writes_is_read_again(demo_folder: Path) -> None:
    from transformers import AutoTokenizer

    calls = [
        {"id": str(index), "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for index, (name, arguments) in enumerate(EXPECTED)
    ]
    chat = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "Let me see.", "tool_calls": calls}]
    text = AutoTokenizer.from_pretrained(demo_folder).apply_chat_template(chat, tokenize=False)
    answer = text.partition("<|im_start|>assistant\n")[2].removesuffix("<|im_end|>\n")
    reply = read_whole(parser_of("hermes"), answer)
    assert reply.content == "Let me see."
    assert [(call.name, json.loads(call.arguments)) for call in reply.tool_calls] == EXPECTED


@pytest.mark.parametrize("name", sorted(REASONING_FORMATS.keys() - {"minimax_m2_append_think"}))
def test_samples_of_reasoning(name: str) -> None:
    sample, _ = REASONING_SAMPLES[name]
    inside = sample.startswith("why") or REASONING_FORMATS[name].looks.startswith("`...")
    assert read_whole(parser_of(None, name, inside=inside), sample) == Reply("so", "why")
    assert read_whole(parser_of("hermes", name, inside=inside), sample) == Reply("so", "why")
    hidden = make_parser(None, reasoning_format(name), inside=inside, include_reasoning=False)
    assert read_whole(hidden, sample) == Reply("so")


def test_reasoning_that_stays_in_the_answer() -> None:
    reply = read_whole(parser_of("minimax_m2", "minimax_m2_append_think", inside=True), "why</think>\n\nso")
    assert reply == Reply("<think>why</think>\n\nso")


@pytest.mark.parametrize(
    ("tools", "reasoning"), [("glm45", "glm45"), ("kimi_k2", "kimi_k2"), ("cohere_command3", "cohere_command3")]
)
def test_a_call_ends_the_reasoning(tools: str, reasoning: str) -> None:
    start = reasoning_format(reasoning).start
    reply = read_whole(parser_of(tools, reasoning), f"{start}why\n{SAMPLES[tools]}")
    assert (reply.reasoning, reply.content, len(reply.tool_calls)) == ("why", None, 2)
    untold = read_whole(parser_of(None, reasoning), f"{start}why\n{SAMPLES[tools]}")
    assert untold == Reply(None, f"why\n{SAMPLES[tools]}")


def test_calls_within_the_tags_of_an_answer() -> None:
    text = f"<think>\nwhy\n</think>\n<answer>\nI see.\n{SAMPLES['jamba']}\n</answer>"
    reply = read_whole(parser_of("hunyuan_a13b", "hunyuan_a13b"), text)
    assert (reply.reasoning, reply.content, len(reply.tool_calls)) == ("why", "I see.", 2)


@pytest.mark.parametrize("name", ["hermes", "granite", "mistral", "mistral_v11", "deepseek_v3", "qwen3_coder"])
def test_text_around_calls(name: str) -> None:
    reply = read_whole(parser_of(name), f"Let me see.\n\n{SAMPLES[name]}\n")
    assert reply.content == "Let me see."
    assert len(reply.tool_calls) == 2
    assert read_whole(parser_of(name), "No call. ") == Reply("No call. ")
    assert read_whole(parser_of(name), "") == Reply()


@pytest.mark.parametrize("name", OTHER_WAYS)
def test_other_ways_in_which_models_write_calls(name: str) -> None:
    reply = read_whole(parser_of(name), OTHER_WAYS[name])
    assert [(call.name, json.loads(call.arguments)) for call in reply.tool_calls] == [
        ("weather", {"place": "Oak"}),
        ("now", {}),
    ]
    assert reply.content is None


def test_arguments_come_as_they_are_written() -> None:
    parser = parser_of("hermes")
    assert parser.push('Hm.\n<tool_call>\n{"name": "weather", "argu') == [ContentDelta("Hm.")]
    assert parser.push('ments": {"pl') == [ToolCallStart(0, "call-0", "weather"), ToolCallArguments(0, '{"pl')]
    assert parser.push("ace") == [ToolCallArguments(0, "ace")]
    assert parser.push('": "Oak"}}') == [ToolCallArguments(0, '": "Oak"}')]
    assert parser.push("\n</tool_") == []
    assert parser.push("call>") == []
    assert parser.finish() == []


def test_texts_of_qwens_parameters_come_as_they_are_written() -> None:
    parser = parser_of("qwen3_coder")
    parser.push("<tool_call>\n<function=note>\n<parameter=text>\n")
    assert parser.push('say "') == [ToolCallArguments(0, 'say \\"')]
    assert parser.push("hi\n") == [ToolCallArguments(0, "hi")]
    assert parser.push("</param") == []
    assert parser.push("eter>\n</function>") == [ToolCallArguments(0, '"}')]


def test_no_more_is_held_back_than_may_be_a_marker() -> None:
    parser = parser_of("hermes")
    assert parser.push("a <") == [ContentDelta("a")]
    assert parser.push("b> <tool_") == [ContentDelta(" <b>")]
    assert parser.push("x") == [ContentDelta(" <tool_x")]
    llama = parser_of("llama3_json")
    assert llama.push("The") == [ContentDelta("The")]
    assert parser_of("llama3_json").push('{"city') == []
    assert parser_of("llama3_json").push('{"city"') == [ContentDelta('{"city"')]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", '<tool_call>\n{"name": "f", "argum'),
        ("hermes", '<tool_call>\n{"name": 5, "arguments": {}}\n</tool_call>'),
        ("hermes", "<tool_call>no</tool_call>"),
        ("llama3_json", '{"name": "John", "age": 3}'),
        ("llama3_json", '{"name": "John"}'),
        ("pythonic", "[1, 2] is a list"),
        ("pythonic", "[f(a=open('x'))]"),
        ("pythonic", "[f(a=nan)]"),
        ("qwen3_coder", "<tool_call>\nnone"),
        ("deepseek_v3", f"{BEGIN}function{SEP}"),
        ("mistral", "[TOOL_CALLS] none"),
        ("granite", "<|tool_call|>[]"),
    ],
)
def test_what_is_no_call_is_content(name: str, text: str) -> None:
    assert read_whole(parser_of(name), text) == Reply(text)


def test_arguments_cut_short_stay_as_they_came() -> None:
    for name, text in {
        "hermes": '<tool_call>{"name": "weather", "arguments": {"place": "Oa',
        "qwen3_coder": "<tool_call>\n<function=weather>\n<parameter=place>\nOa",
        "openai": '<|channel|>commentary to=functions.weather<|message|>{"place": "Oa',
    }.items():
        assert read_whole(parser_of(name), text).tool_calls == [FunctionCall("call-0", "weather", '{"place": "Oa')]


def test_long_runs_of_spaces_are_not_held_back() -> None:
    parser = parser_of("hermes")
    shown = sum(len(part.text) for _ in range(40) for part in parser.push(" " * 50) if isinstance(part, ContentDelta))
    assert shown == 2000 - 1024
    text = "x" + " " * 3000 + SAMPLES["hermes"]
    whole = read_whole(parser_of("hermes"), text)
    assert fold(stream(parser_of("hermes"), [text[place : place + 7] for place in range(0, len(text), 7)])) == whole


def test_calls_beyond_the_most_are_left_out() -> None:
    reply = read_whole(parser_of("hermes", most_calls=1), SAMPLES["hermes"])
    assert [call.name for call in reply.tool_calls] == ["weather"]


def test_ids() -> None:
    mistral = read_whole(make_parser(tool_format("mistral")), SAMPLES["mistral"])
    assert all(len(call.id) == 9 and call.id.isalnum() for call in mistral.tool_calls)
    hermes = read_whole(make_parser(tool_format("hermes")), SAMPLES["hermes"])
    assert all(call.id.startswith("chatcmpl-tool-") for call in hermes.tool_calls)
    assert len({call.id for call in (*mistral.tool_calls, *hermes.tool_calls)}) == 4
    own = read_whole(parser_of("mistral"), '[TOOL_CALLS]weather[CALL_ID]abc123XYZ[ARGS]{"place": "Oak"}')
    assert own.tool_calls[0].id == "abc123XYZ"


def test_harmony() -> None:
    text = (
        "<|channel|>analysis<|message|>one<|end|><|start|>assistant<|channel|>analysis<|message|>two<|end|>"
        "<|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
        "<|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{}<|call|>"
        "<|start|>assistant<|channel|>final<|message|>Done.<|return|>"
    )
    reply = read_whole(parser_of("openai", "openai"), text)
    assert reply == Reply("I look.Done.", "one\ntwo", [FunctionCall("call-0", "weather", "{}")])
    without = read_whole(parser_of(None, "openai"), text)
    assert (without.content, without.tool_calls) == ("I look.\n{}\nDone.", [])
    assert read_whole(parser_of("openai"), "plain words") == Reply("plain words")
    assert read_whole(parser_of("openai"), "<|channel|>ana") == Reply()
