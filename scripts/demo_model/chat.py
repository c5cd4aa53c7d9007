"""The chat template of the demo model, and the same rendering in plain Python for the speed of the corpus."""

from __future__ import annotations

from scripts.demo_model.example import Message, Tool
from scripts.demo_model.json_objects import dumps

START, END, SEPARATOR = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
SPECIAL_TOKENS = (SEPARATOR, START, END)
"""In the order of their ids, from 0: document separator and bos, start and end of a chat turn."""

CALL_TOKENS = ("<tool_call>", "</tool_call>")
"""Single tokens too, but ordinary text: decoding keeps them, since clients must see them."""

TEMPLATE = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- 'You may call these functions:\\n<tools>\\n' }}
    {%- for tool in tools %}
        {{- tool | tojson }}
        {{- '\\n' }}
    {%- endfor %}
    {{- '</tools><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if not (loop.first and message.role == 'system') %}
        {{- '<|im_start|>' + message.role + '\\n' }}
        {%- if message.content %}
            {{- message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls or [] %}
            {%- if not loop.first or message.content %}
                {{- '\\n' }}
            {%- endif %}
            {%- set call = tool_call.function or tool_call %}
            {{- '<tool_call>\\n{"name": "' + call.name + '", "arguments": ' }}
            {%- if call.arguments is string %}
                {{- call.arguments }}
            {%- else %}
                {{- call.arguments | tojson }}
            {%- endif %}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


def render(messages: list[Message], tools: tuple[Tool, ...] = (), add_generation_prompt: bool = False) -> str:
    """What `TEMPLATE` renders; a test holds the two together.  Calls must be written out in an assistant's content."""
    system = [message["content"] for message in messages[:1] if message["role"] == "system"]
    turns = messages[len(system) :]
    if tools:
        system.append("\n".join(["You may call these functions:", "<tools>", *map(dumps, tools), "</tools>"]))
    text = f"{START}system\n" + "\n\n".join(system) + f"{END}\n" if system else ""
    text += "".join(f"{START}{turn['role']}\n{turn['content']}{END}\n" for turn in turns)
    return text + (f"{START}assistant\n" if add_generation_prompt else "")
