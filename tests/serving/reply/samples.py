"""Texts as models write them, in each format."""

import re
from typing import Any

from jaxllm.serving.reply.catalogue import REASONING_FORMATS, TOOL_FORMATS
from jaxllm.serving.reply.registry import tool_format

PLACE = {"type": "object", "properties": {"place": {"type": "string"}, "days": {"type": ["integer", "null"]}}}
SCHEMAS: dict[str, Any] = {
    "weather": PLACE,
    "note": {
        "type": "object",
        "$defs": {"size": {"enum": ["s", "m"]}},
        "properties": {"text": {"type": "string"}, "size": {"$ref": "#/$defs/size"}, "tags": {"type": "array"}},
    },
}
BEGIN, END, SEP = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
ALL, NONE = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
OAK, NOTE = '{"place": "Oak"}', '{"text": "a \\"b\\"\\n}", "tags": [1, "]"]}'

# For each format: a text as the model's chat template would write it, with a call of weather and one of note.
SAMPLES = {
    "hermes": f'<tool_call>\n{{"name": "weather", "arguments": {OAK}}}\n</tool_call>\n'
    f'<tool_call>\n{{"name": "note", "arguments": {NOTE}}}\n</tool_call>',
    "granite": f'<|tool_call|>[{{"name": "weather", "arguments": {OAK}}}, {{"name": "note", "arguments": {NOTE}}}]',
    "mistral": f'[TOOL_CALLS] [{{"name": "weather", "arguments": {OAK}}}, {{"name": "note", "arguments": {NOTE}}}]',
    "mistral_v11": f"[TOOL_CALLS]weather[ARGS]{OAK}[TOOL_CALLS]note[ARGS]{NOTE}",
    "llama3_json": f'{{"name": "weather", "parameters": {OAK}}}; {{"name": "note", "parameters": {NOTE}}}',
    "pythonic": "[weather(place='Oak'), note(text='a \"b\"\\n}', tags=[1, ']'])]",
    "llama4_pythonic": "<|python_start|>[weather(place='Oak'), note(text='a \"b\"\\n}', tags=[1, ']'])]<|python_end|>",
    "qwen3_coder": "<tool_call>\n<function=weather>\n<parameter=place>\nOak\n</parameter>\n</function>\n</tool_call>\n"
    '<tool_call>\n<function=note>\n<parameter=text>\na "b"\n}\n</parameter>\n'
    '<parameter=tags>\n[1, "]"]\n</parameter>\n</function>\n</tool_call>',
    "deepseek_v3": f"{ALL}{BEGIN}function{SEP}weather\n```json\n{OAK}\n```{END}\n"
    f"{BEGIN}function{SEP}note\n```json\n{NOTE}\n```{END}{NONE}",
    "deepseek_v31": f"{ALL}{BEGIN}weather{SEP}{OAK}{END}{BEGIN}note{SEP}{NOTE}{END}{NONE}",
    "openai": f"<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{OAK}<|call|>"
    f"<|start|>assistant<|channel|>commentary to=functions.note <|constrain|>json<|message|>{NOTE}<|call|>",
}


def xml(call: str, value: str) -> tuple[str, str]:
    """Two calls made of a pattern for a call with its name and values, and one for a value with its key."""
    texts = {"place": "Oak", "text": 'a "b"\n}', "tags": '[1, "]"]'}
    weather, note = (
        [value.format(key=key, value=texts[key]) for key in keys] for keys in (["place"], ["text", "tags"])
    )
    return call.format(name="weather", values="".join(weather)), call.format(name="note", values="".join(note))


def plain(begin: str, end: str, key: str = "arguments") -> list[str]:
    return [f'{begin}{{"name": "{name}", "{key}": {value}}}{end}' for name, value in (("weather", OAK), ("note", NOTE))]


GLM = xml("<tool_call>{name}\n{values}</tool_call>", "<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n")
INVOKE = xml('<invoke name="{name}">\n{values}</invoke>\n', '<parameter name="{key}">{value}</parameter>\n')
DSML = xml(
    '<｜DSML｜invoke name="{name}">\n{values}</｜DSML｜invoke>',
    '<｜DSML｜parameter name="{key}" string="true">{value}</｜DSML｜parameter>\n',
)
DSML = DSML[0], DSML[1].replace('tags" string="true"', 'tags" string="false"')


def marked(text: str) -> str:
    """Tags with MiniMax-M3's mark before each."""
    return text.replace("<", "]<]minimax[>[<")


STEP = xml(
    "<｜tool_call_begin｜>function<｜tool_sep｜>"
    '<steptml:invoke name="{name}">{values}</steptml:invoke><｜tool_call_end｜>',
    '<steptml:parameter name="{key}">{value}</steptml:parameter>',
)
K3 = xml(
    '<|open|>call tool="{name}" index="1"<|sep|>{values}<|close|>call<|sep|>',
    '<|open|>argument key="{key}" type="string"<|sep|>{value}<|close|>argument<|sep|>',
)
K3 = K3[0], K3[1].replace('tags" type="string"', 'tags" type="array"')
PLAMO = "".join(
    "<|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>" + name + "<|plamo:end_tool_name:plamo|>"
    "<|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json<|plamo:msg|>"
    + value
    + "<|plamo:end_tool_arguments:plamo|><|plamo:end_tool_request:plamo|>"
    for name, value in (("weather", OAK), ("note", NOTE))
)
SAMPLES |= {
    "apertus": f'<|tools_prefix|>[{{"weather": {OAK}}}, {{"note": {NOTE}}}]<|tools_suffix|>',
    "cohere_command3": "<|START_ACTION|>[\n"
    f'    {{"tool_call_id": "0", "tool_name": "weather", "parameters": {OAK}}},\n'
    f'    {{"tool_call_id": "1", "tool_name": "note", "parameters": {NOTE}}}\n]<|END_ACTION|>',
    "deepseek_v32": f"<｜DSML｜function_calls>\n{DSML[0]}\n{DSML[1]}\n</｜DSML｜function_calls>",
    "deepseek_v4": f"<｜DSML｜tool_calls>\n{DSML[0]}\n{DSML[1]}\n</｜DSML｜tool_calls>",
    "deepseek_v41": f"<｜DSML｜calls>\n{DSML[0]}\n{DSML[1]}\n</｜DSML｜calls>".replace("DSML｜", "DSML｜ "),
    "dots": f"<dots_function_call>\n{''.join(INVOKE)}</dots_function_call>",
    "functiongemma": "<start_function_call>call:weather{place:<escape>Oak<escape>}<end_function_call>"
    '<start_function_call>call:note{text:<escape>a "b"\n}<escape>,tags:[1,<escape>]<escape>]}<end_function_call>',
    "gemma4": '<|tool_call>call:weather{place:<|"|>Oak<|"|>}<tool_call|>'
    '<|tool_call>call:note{text:<|"|>a "b"\n}<|"|>,tags:[1,<|"|>]<|"|>]}<tool_call|>',
    "gigachat3": "".join(plain("<|function_call|>", "")),
    "glm45": "\n".join(GLM),
    "glm47": "".join(GLM).replace("\n<", "<"),
    "granite-20b-fc": " ".join(plain("<function_call> ", "")),
    "hy_v3": f"<tool_calls>\n{GLM[0]}\n{GLM[1]}\n</tool_calls>".replace("r\n<", "r<tool_sep>\n<").replace(
        "e\n<arg_key>", "e<tool_sep>\n<arg_key>"
    ),
    "inkling": "".join(
        f'<|message_model|>{name}<|content_invoke_tool_json|>{{"name":"{name}","args":{value}}}<|end_message|>'
        for name, value in (("weather", OAK), ("note", NOTE))
    ),
    "internlm": "\n".join(plain("<|action_start|><|plugin|>\n", "<|action_end|>", "parameters")),
    "jamba": f"<tool_calls>[\n  {', '.join(plain('', ''))}\n]</tool_calls>",
    "k2_horizon": f"<tool_calls>\n{GLM[0]}\n{GLM[1]}\n</tool_calls>".replace("</", "</ifm|")
    .replace("<tool", "<ifm|tool").replace("<arg", "<ifm|arg"),
    "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>"
    f"{OAK}<|tool_call_end|><|tool_call_begin|>functions.note:1<|tool_call_argument_begin|>{NOTE}<|tool_call_end|>"
    "<|tool_calls_section_end|>",
    "kimi_k3": "<|open|>tools<|sep|>" + "".join(K3) + "<|close|>tools<|sep|>",
    "lfm2": "<|tool_call_start|>[weather(place='Oak'), note(text='a \"b\"\\n}', tags=[1, ']'])]<|tool_call_end|>",
    "longcat": "".join(plain("<longcat_tool_call>\n", "\n</longcat_tool_call>\n")),
    "minicpm5": "".join(xml('<function name="{name}">{values}</function>', '<param name="{key}">{value}</param>')),
    "minimax_m2": f"<minimax:tool_call>\n{''.join(INVOKE)}</minimax:tool_call>",
    "minimax_m3": marked("<tool_call>\n<invoke name=\"weather\"><place>Oak</place></invoke>\n<invoke name=\"note\">"
    '<text>a "b"\n}</text><tags>[1, "]"]</tags></invoke>\n</tool_call>'),
    "olmo3": "<function_calls>\nweather(place='Oak')\nnote(text='a \"b\"\\n}', tags=[1, ']'])\n</function_calls>",
    "phi4_mini_json": f"functools[{','.join(plain('', ''))}]",
    "plamo3": f"<|plamo:begin_tool_requests:plamo|>{PLAMO}<|plamo:end_tool_requests:plamo|>",
    "seed_oss": "\n".join(xml(
        "<seed:tool_call>\n<function={name}>\n{values}</function>\n</seed:tool_call>",
        "<parameter={key}>{value}</parameter>\n",
    )),
    "step3": f"<｜tool_calls_begin｜>{''.join(STEP)}<｜tool_calls_end｜>",
    "xlam": f"[{', '.join(plain('', ''))}]",
}  # fmt: skip
EXPECTED = [("weather", {"place": "Oak"}), ("note", {"text": 'a "b"\n}', "tags": [1, "]"]})]

OTHER_WAYS = {
    "minimax_m3": marked("<invoke name='weather'> <place>Oak</place></invoke><invoke name=now></invoke>"),
    "step3": (
        "<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜>weather\n"
        '<steptml:invoke name="weather">'
        '<steptml:parameter name="place">Oak</steptml:parameter></steptml:invoke><｜tool_call_end｜>'
        '<｜tool_sep｜><｜tool_call_begin｜><steptml:invoke name="now"></steptml:invoke><｜tool_call_end｜>'
        "<｜tool_calls_end｜>"
    ),
    "minicpm5": (
        '<function name="weather"><param name="place"><![CDATA[Oak]]></param></function>'
        '<function name="now"></function>'
    ),
    "kimi_k3": (
        '<|open|>call tool="weather" index="7"<|sep|><|open|>argument key="place" type="string"<|sep|>Oak'
        '<|close|>argument<|sep|><|close|>call<|sep|><|open|>call tool="now" index="8"<|sep|><|close|>call<|sep|>'
    ),
    "inkling": (
        '<|content_invoke_tool_json|>{"name": "weather", "args": {"place": "Oak"}}<|content_model_end_sampling|>'
        '<|content_invoke_tool_json|>{"name": "now", "args": {}}'
    ),
    "glm45": (
        "<tool_call>weather<arg_key>place</arg_key><arg_value>Oak</arg_value></tool_call><tool_call>now</tool_call>"
    ),
    "qwen3_coder": "<function=weather><parameter=place>Oak</parameter></function><function=now></function>",
    "minimax_m2": (
        "<invoke name='weather'><parameter name='place'>Oak</parameter></invoke><invoke name='now'></invoke>"
    ),
    "kimi_k2": (
        '<|tool_call_begin|>weather<|tool_call_argument_begin|> {"place": "Oak"}<|tool_call_end|>'
        "<|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}"
    ),
    "gemma4": '<|tool_call>call:weather{"place": "Oak"}<tool_call|><|tool_call>call:now{}<tool_call|>',
    "functiongemma": "<start_function_call>call:weather{place:Oak}<start_function_call>call:now{}",
    "cohere_command3": (
        '<|START_ACTION|>[{"tool_name": "weather", "parameters": {"place": "Oak"}, '
        '"tool_call_id": "1"}, {"tool_name": "now", "parameters": {}}]'
    ),
    "xlam": ('```json\n[{"name": "weather", "arguments": {"place": "Oak"}}, {"name": "now", "arguments": {}}]\n```'),
    "internlm": (
        '<|action_start|> <|plugin|>{"name": "weather", "parameters": {"place": "Oak"}}<|action_end|>'
        '<|action_start|><|plugin|>{"name": "now"}'
    ),
    "gigachat3": (
        'function call<|role_sep|>\n{"name": "weather", "arguments": {"place": "Oak"}}<|function_call|>'
        '{"name": "now", "arguments": {}}'
    ),
    "olmo3": "<function_calls>weather(place='Oak')\n\nnow()</function_calls>",
    "deepseek_v32": (
        '<｜DSML｜invoke name="weather"><｜DSML｜parameter name="place">Oak</｜DSML｜parameter></｜DSML｜invoke>'
        '<｜DSML｜function_calls><｜DSML｜invoke name="now"></｜DSML｜invoke></｜DSML｜function_calls>'
    ),
}
"""Calls of weather and of now without arguments, as models write them otherwise than their templates do."""

MORE: dict[str, tuple[str, ...]] = {
    "hermes": ('{"arguments": {}, "name": "f"}', "<tool_call>", "</tool_call>", '{"name": "f"}', '"arguments": "{}"'),
    "granite": ("<|tool_call|>[", "<tool_call>", '{"name": "f"}', ", ", "]"),
    "mistral": ("[TOOL_CALLS]", "[CALL_ID]ab1", "[ARGS]", "f", '{"name": "f"}', "[", "]"),
    "llama3_json": ("<|python_tag|>", ";", '{"name": "f", "parameters": {', '{"city": 1}'),
    "pythonic": ("[", "]", "f(", "a=", ")", "'", "True", "-1e3", "(1,)", "<|python_start|>", "<|python_end|>"),
    "qwen3_coder": ("<tool_call>", "<function=note>", "<parameter=text>\n", "\n</parameter>", "</function>", "<parame"),
    "deepseek_v3": (ALL, NONE, BEGIN, END, SEP, "function", "```json", "```"),
    "openai": ("<|channel|>", "analysis", "final", "<|message|>", "<|end|>", "<|start|>", " to=functions.f", "to="),
}
COMMON = ("{", "}", '"', "\\", "\n", " ", ":", "weather", "arguments", '{"a": [1]}', "x", "🙂", "<", "</", "\u2028")


def tagged(name: str) -> tuple[str, tuple[str, ...]]:
    """A reply whose tags are those of the entry's example, and the tags."""
    begin, end = REASONING_FORMATS[name].looks.split("`")[1].split("...")
    return f"{begin}\nwhy\n{end}\n\nso", tuple(filter(None, (begin, end, "</thi")))


REASONING_SAMPLES = {
    name: tagged(name) for name, entry in REASONING_FORMATS.items() if "..." in entry.looks and name != "granite"
}
GRANITE = "Here is my thought process: why\nHere is my response:\nso"
HARMONY = "<|channel|>analysis<|message|>why<|end|><|start|>assistant<|channel|>final<|message|>so"
REASONING_SAMPLES |= {
    "cohere_command4": ("<|START_THINKING|>why<|END_THINKING|><|START_RESPONSE|>so<|END_RESPONSE|>", ("<|START_",)),
    "ernie45": ("why\n</think>\n\n<response>\nso\n</response>\n", ("<response>", "</response>", "</think>")),
    "plamo3": (
        "<|plamo:begin_think:plamo|>why<|plamo:end_think:plamo|>so",
        ("<|plamo:begin_", ":plamo|>", "end_think"),
    ),
    "granite": (GRANITE, ("Here is my ", "response:", "Here's")),
    "hunyuan_a13b": ("<think>\nwhy\n</think>\n<answer>\nso\n</answer>", ("<answer>", "</answer>", "</think>")),
    "openai": (HARMONY, MORE["openai"]),
    "openai_gptoss": (HARMONY, MORE["openai"]),
    "inkling": (
        "<|message_model|><|content_thinking|>why<|end_message|><|message_model|><|content_text|>so<|end_message|>",
        ("<|message_model|>", "<|content_text|>", "<|end_message|>", "<|content_"),
    ),
    "minimax_m2_append_think": ("why</think>so", ("<think>", "</think>")),
}
REASONING_ONCE = list({entry.path: name for name, entry in REASONING_FORMATS.items()}.values())


def first_of(name: str) -> str:
    """The first name of the same format."""
    return next(each for each in SAMPLES if TOOL_FORMATS[each].path == TOOL_FORMATS[name].path)


ONCE = [name for name in TOOL_FORMATS if first_of(name) == name]
"""Every format under one of its names."""


def more_of(name: str) -> tuple[str, ...]:
    """Fragments of the format's texts: those given, and the tags of its sample."""
    given = MORE.get({"mistral_v11": "mistral", "deepseek_v31": "deepseek_v3"}.get(name, name), ())
    tags = re.findall(r"</?[^<>\s]+(?: [^<>]*)?>|<\|\"\|>", SAMPLES[name])
    return tuple(dict.fromkeys((*given, *tags, *tool_format(name).markers)))
