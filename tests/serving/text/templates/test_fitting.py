"""Messages of clients reach the prompt, whatever form a chat template takes."""

from typing import Any

import pytest

from jaxllm.errors import QueueFullError, RequestError
from jaxllm.serving.text.chat import render_chat
from jaxllm.serving.text.templates import rendering
from jaxllm.serving.text.templates.budget import TemplateLimitError
from jaxllm.serving.text.templates.facts import TemplateFacts
from jaxllm.serving.text.templates.rendering import Conversation
from jaxllm.serving.text.templates.trials import Form, TemplateTrials
from jaxllm.serving.text.tokenizer import Tokenizer

Message = dict[str, Any]


def said(role: str, content: Any, **more: Any) -> Message:
    return {"role": role, "content": content, **more}


def user(content: Any) -> Message:
    return said("user", content)


def parts(*texts: str) -> list[Message]:
    return [{"type": "text", "text": text} for text in texts]


LOOPS = "{% for p in m.content %}{{ p.text }}{% endfor %}"
EITHER = "{% if m.content is string %}{{ m.content }}{% else %}" + LOOPS + "{% endif %}"


def template(content: str) -> str:
    return "{% for m in messages %}" + content + ";{% endfor %}"


FILTERED = template("{% for p in m['content'] | selectattr('type', 'equalto', 'text') %}{{ p['text'] }}{% endfor %}")
COMPARED = template("{% for p in m['content'] %}{% if p['type'] == 'text' %}{{ p['text'] }}{% endif %}{% endfor %}")
MACRO = "{% macro show(c) %}{% for p in c %}{{ p.text }}{% endfor %}{% endmacro %}" + template("{{ show(m.content) }}")
STRICT = template("{% if m.content is string %}{{ raise_exception('a list!') }}{% else %}" + LOOPS + "{% endif %}")
JOINED = template("{{ m.content | map(attribute='text') | join('') }}")


@pytest.mark.parametrize("source", [FILTERED, COMPARED, MACRO, STRICT, JOINED, template(LOOPS), template(EITHER)])
def test_templates_that_go_through_parts_get_texts_too(tokenizer: Tokenizer, source: str) -> None:
    talk = [said("system", "a"), user("b"), said("assistant", parts("c", "d")), user(parts("e", "f")), user("")]
    assert render_chat(tokenizer, talk, chat_template=source) == "a;b;cd;ef;;"


EMPTIED = template("{% set content = m.content if m.content is string else '' %}{{ content }}")
ADDED = template("{{ '' + m.content }}")
PLAIN = template("{{ m.content }}")
ONE = template("{% if m.content is string %}{{ m.content }}{% else %}{{ m.content[0].text }}{% endif %}")
FIRST = template("{{ m.content[0].text }}")


@pytest.mark.parametrize("source", [EMPTIED, ADDED, PLAIN, ONE, FIRST])
def test_templates_that_would_lose_parts_get_one_text(tokenizer: Tokenizer, source: str) -> None:
    talk = [user("a"), said("assistant", parts("b", "c")), user(parts("d")), user(parts("e", "f"))]
    assert render_chat(tokenizer, talk, chat_template=source) == "a;b\nc;d;e\nf;"


def test_each_role_has_a_form_of_its_own(tokenizer: Tokenizer) -> None:
    source = template("{% if m.role == 'user' %}" + LOOPS + "{% else %}{{ m.role + m.content }}{% endif %}")
    talk = [said("system", parts("a", "b")), user("c"), said("assistant", parts("d", "e")), user(parts("f", "g"))]
    assert render_chat(tokenizer, talk, chat_template=source) == "systema\nb;c;assistantd\ne;fg;"
    source = template(
        "{% if m.role == 'tool' %}"
        + LOOPS
        + "{% elif m.tool_calls %}C{{ m.content }}{% else %}{{ m.content }}{% endif %}"
    )
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    talk = [user("a"), said("assistant", parts("b", "c"), tool_calls=[call]), said("tool", "d", tool_call_id="1")]
    assert render_chat(tokenizer, talk, chat_template=source) == "a;Cb\nc;d;"


def test_with_tools_a_template_may_take_another_form(tokenizer: Tokenizer) -> None:
    source = "{% if tools %}{{ messages[0].content | trim }}{% else %}" + template(EITHER) + "{% endif %}"
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert render_chat(tokenizer, [user(parts("a", "b"))], chat_template=source) == "ab;"
    assert render_chat(tokenizer, [user(parts("a", "b"))], chat_template=source, tools=tools) == "a\nb"


@pytest.mark.parametrize(
    ("form", "prompt"), [("auto", "T:a;P:bc;"), ("string", "T:a;T:b\nc;"), ("openai", "P:a;P:bc;")]
)
def test_the_operator_may_choose_the_form(tokenizer: Tokenizer, form: str, prompt: str) -> None:
    source = template("{% if m.content is string %}T:{{ m.content }}{% else %}P:" + LOOPS + "{% endif %}")
    talk = [user("a"), user(parts("b", "c"))]
    assert render_chat(tokenizer, talk, chat_template=source, chat_template_content_format=form) == prompt
    with pytest.raises(RequestError, match="must be one of auto, string, openai"):
        render_chat(tokenizer, talk, chat_template=source, chat_template_content_format="text")


TRANSLATES = template(
    "{% set c = m.content %}{% if c is string or c | length != 1 or not c[0].source_lang_code %}"
    "{{ raise_exception('one part with a language!') }}{% endif %}"
    "{{ {'de': 'German'}[c[0].source_lang_code] }}>{{ c[0]['target_lang_code'] }} {{ c[0].text }}"
)


def test_fields_of_parts_and_messages_reach_the_template(tokenizer: Tokenizer) -> None:
    part = {"type": "text", "text": "Hallo", "source_lang_code": "de", "target_lang_code": "en"}
    assert render_chat(tokenizer, [user([part])], chat_template=TRANSLATES) == "German>en Hallo;"
    source = template("{{ m.weight }} {% for p in m.content %}{{ p.source_lang_code }} {{ p.text }}{% endfor %}")
    assert render_chat(tokenizer, [{**user([part]), "weight": 2}], chat_template=source) == "2 de Hallo;"


THINKS = template(
    "{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
    "{% if p.type == 'text' %}{{ p.text }}{% elif p.type == 'thinking' %}<{{ p.thinking }}>"
    "{% elif p['type'] in ('document',) %}[{{ p.document.data }}]{% endif %}{% endfor %}{% endif %}"
)
REASONS = template("{% if m.reasoning_content %}<{{ m.reasoning_content }}>{% endif %}{{ m.content }}")
UNTYPED = template("{% for p in m.content %}{{ p.thinking or p.text }}{% endfor %}")


@pytest.mark.parametrize(
    ("source", "prompt"), [(THINKS, "a;<t>b;c;"), (REASONS, "a;<t>b;c;"), (UNTYPED, "a;tb;c;"), (PLAIN, "a;b;c;")]
)
def test_thinking_goes_where_the_template_reads_it(tokenizer: Tokenizer, source: str, prompt: str) -> None:
    answer = said("assistant", [{"type": "thinking", "thinking": "t"}, {"type": "text", "text": "b"}])
    assert render_chat(tokenizer, [user("a"), answer, user("c")], chat_template=source) == prompt


def test_other_parts_are_for_templates_that_compare_with_their_type(tokenizer: Tokenizer) -> None:
    document = user([{"type": "document", "document": {"data": "d"}}, *parts("a")])
    assert render_chat(tokenizer, [document], chat_template=THINKS) == "[d]a;"
    for source, part in ((PLAIN, document["content"][0]), (THINKS, {"type": "chart", "text": "x"})):
        with pytest.raises(RequestError, match=f"type='{part['type']}': this model accepts text only") as caught:
            render_chat(tokenizer, [user("a"), user([*parts("b"), part])], chat_template=source)
        assert caught.value.parameter == "messages[1].content[1].type"


SYSTEM, DEVELOPER = said("system", "a"), said("developer", "b")
ROLES = template("<{{ m.role }}>{{ m.content }}")
FIRST_ONLY = (
    "{% if messages[0].role == 'system' %}[{{ messages[0].content }}]{% set messages = messages[1:] %}{% endif %}"
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('at the beginning!') }}{% endif %}"
    "{{ m.content }};{% endfor %}"
)
LOSES_LATER = (
    "{% if messages[0].role in ['developer', 'system'] %}[{{ messages[0].content }}]{% endif %}"
    "{% for m in messages %}{% if m.role not in ['developer', 'system'] %}{{ m.content }};{% endif %}{% endfor %}"
)


@pytest.mark.parametrize(
    ("source", "prompt"),
    [
        (ROLES, "<system>b;<user>c;"),
        # The letters are no sign of it, nor is a branch that drops or refuses it.
        (ROLES + "{# for developers #}{% set developer_preamble = 'developer' %}", "<system>b;<user>c;"),
        (template("<{{ m.role | upper }}>{{ m.content }}") + "{# developer #}", "<SYSTEM>b;<USER>c;"),
        (template("{% if m.role != 'developer' %}{{ m.role + m.content }}{% endif %}"), "systemb;userc;"),
        (template("{% if m.role == 'developer' %}{{ raise_exception('no') }}{% endif %}{{ m.content }}"), "b;c;"),
        (template("{% if m.role == 'developer' %}DEV{% endif %}{{ m.content }}"), "DEVb;c;"),
        (template("{{ {'developer': 'DEV', 'user': 'USR'}[m.role] }}{{ m.content }}"), "DEVb;USRc;"),
        (LOSES_LATER, "[b]c;"),
    ],
)
def test_the_developer_is_the_system_unless_the_template_knows_it(
    tokenizer: Tokenizer, source: str, prompt: str
) -> None:
    assert render_chat(tokenizer, [DEVELOPER, user("c")], chat_template=source) == prompt


@pytest.mark.parametrize(
    ("source", "talk", "prompt"),
    [
        (FIRST_ONLY, [SYSTEM, DEVELOPER, user("c")], "[a\n\nb]c;"),
        (FIRST_ONLY, [SYSTEM, user("c"), said("assistant", "d"), DEVELOPER, user("e")], "[a\n\nb]c;d;e;"),
        (FIRST_ONLY, [user("c"), SYSTEM], "[a]c;"),
        (FIRST_ONLY, [said("system", parts("a", "b")), DEVELOPER, user("c")], "[a\nb\n\nb]c;"),
        (LOSES_LATER, [SYSTEM, DEVELOPER, user("c")], "[a\n\nb]c;"),
        (LOSES_LATER, [user("c"), DEVELOPER], "[b]c;"),
        # Where the template takes them as they are, they stay.
        (ROLES, [SYSTEM, DEVELOPER, user("c"), SYSTEM], "<system>a;<system>b;<user>c;<system>a;"),
    ],
)
def test_instructions_become_one_where_the_template_takes_one(
    tokenizer: Tokenizer, source: str, talk: list[Message], prompt: str
) -> None:
    assert render_chat(tokenizer, talk, chat_template=source) == prompt


def test_instructions_of_parts_stay_parts(tokenizer: Tokenizer) -> None:
    source = FIRST_ONLY.replace(
        "{{ messages[0].content }}", "{% for p in messages[0].content %}{{ p.text }}{% endfor %}"
    )
    talk = [said("system", parts("a", "b")), DEVELOPER, user("c")]
    assert render_chat(tokenizer, talk, chat_template=source) == "[ab\n\nb]c;"


def test_a_template_without_a_system_refuses_it(tokenizer: Tokenizer) -> None:
    source = template("{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}{{ m.content }}")
    with pytest.raises(RequestError, match="no system"):
        render_chat(tokenizer, [SYSTEM, DEVELOPER, user("c")], chat_template=source)


NO_PARAMETERS: list[Message] = [
    {"name": "f"},
    {"name": "f", "parameters": None},
    {"name": "f", "parameters": {}},
    {"name": "f", "parameters": {"type": "object"}},
    {"name": "f", "description": None, "parameters": {"type": "object", "required": []}},
]


@pytest.mark.parametrize("function", NO_PARAMETERS)
def test_functions_without_parameters(tokenizer: Tokenizer, function: Message) -> None:
    source = (
        "{% for t in tools %}{{ t.function.name }}("
        "{% for name, schema in t.function.parameters.properties.items() %}{{ name }}{% endfor %})"
        "{{ t.function.description + ';' }}{% endfor %}"
    )
    tools = [{"type": "function", "function": function}]
    assert render_chat(tokenizer, [user("a")], chat_template=source, tools=tools) == "f();"


def test_schemas_are_shown_as_they_were_given(tokenizer: Tokenizer) -> None:
    source = "{% for t in tools %}{{ t.function | tojson }}{% endfor %}"
    for function, shown in (
        ({"name": "f"}, '{"name": "f", "parameters": {"type": "object", "properties": {}}}'),
        ({"name": "f", "parameters": {"type": "object"}}, '{"name": "f", "parameters": {"type": "object"}}'),
    ):
        tools = [{"type": "function", "function": function}]
        assert render_chat(tokenizer, [user("a")], chat_template=source, tools=tools) == shown


def test_a_template_is_tried_once(tokenizer: Tokenizer) -> None:
    rendered = []

    def counting(source: str, given: rendering.Conversation) -> str:
        rendered.append(given)
        return rendering.apply(source, given)

    talk = [SYSTEM, DEVELOPER, user(parts("a", "b")), said("assistant", "c"), user("d")]
    render_chat(tokenizer, talk, chat_template=FIRST_ONLY, apply=counting)
    assert len(rendered) > 1
    rendered.clear()
    for _ in range(3):
        render_chat(tokenizer, talk, chat_template=FIRST_ONLY, apply=counting)
    assert len(rendered) == 3


def test_templates_that_add_arguments_to_a_text_get_them_as_text(tokenizer: Tokenizer) -> None:
    source = template("{% for c in m.tool_calls %}{{ 'f' + c.function.arguments }}{% endfor %}{{ m.content }}")
    talk = [user("a")]
    for arguments in ('{"b": "é"}', {"b": "é"}, '{"b": '):
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
        talk += [said("assistant", None, tool_calls=[call]), said("tool", parts("c", "d"), tool_call_id="1")]
    prompt = render_chat(tokenizer, talk, chat_template=source)
    assert prompt == 'a;f{"b": "é"};c\nd;f{"b": "é"};c\nd;f{};c\nd;'


def test_a_template_that_takes_long_is_not_tried_further() -> None:
    now, rendered = [0.0], []

    def slow(messages: Any, **_: Any) -> str:
        rendered.append(messages)
        now[0] += 3.0
        raise ValueError

    trials = TemplateTrials(slow, TemplateFacts(), clock=lambda: now[0])
    assert trials.form("user", Form.PARTS) is Form.TEXT
    assert not trials.knows_developer
    assert len(rendered) == 3


def test_a_template_that_goes_beyond_its_limits_is_not_tried_again(tokenizer: Tokenizer) -> None:
    rendered = []

    def endless(template: str, given: Conversation) -> str:
        rendered.append(template)
        raise TemplateLimitError("too long")

    with pytest.raises(RequestError, match="too long"):
        render_chat(tokenizer, [{"role": "user", "content": "a"}], chat_template="x", apply=endless)
    # Once to find out what it takes, and once for the request.
    assert len(rendered) == 2


def test_a_full_queue_says_nothing_about_a_template() -> None:
    full = [True]

    def render(messages: Any, **_: Any) -> str:
        if full[0]:
            raise QueueFullError("later")
        return " ".join(part["text"] for message in messages for part in message["content"])

    trials = TemplateTrials(render, TemplateFacts())
    with pytest.raises(QueueFullError):
        trials.form("user", Form.TEXT)
    full.clear()
    full.append(False)
    assert trials.form("user", Form.TEXT) is Form.ONE_PART


@pytest.mark.parametrize("looks", ["m.content[0].thinking", "m.content.thinking.x"])
def test_calls_without_a_content_that_the_template_looks_into(tokenizer: Tokenizer, looks: str) -> None:
    source = template("{% if m.tool_calls and " + looks + " %}T{% endif %}" + EITHER)
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    talk = [user("a"), said("assistant", None, tool_calls=[call]), said("tool", "b", tool_call_id="1")]
    if "[0]" in looks:
        assert render_chat(tokenizer, talk, chat_template=source) == "a;;b;"
    else:
        with pytest.raises(RequestError, match="rejects these messages"):
            render_chat(tokenizer, talk, chat_template=source)


def test_instructions_are_looked_at_with_tools_and_without(tokenizer: Tokenizer) -> None:
    first = "{% if messages[0].role == 'system' %}[{{ messages[0].content }}]{% endif %}"
    source = "{% if tools %}" + first + "{% endif %}{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}"
    source += "{% endif %}{% endfor %}"
    tools = [{"type": "function", "function": {"name": "f"}}]
    talk = [SYSTEM, DEVELOPER, user("c")]
    assert render_chat(tokenizer, talk, chat_template=source) == "c"
    assert render_chat(tokenizer, talk, chat_template=source, tools=tools) == "[a\n\nb]c"
