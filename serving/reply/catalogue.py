"""The formats by name: where each is, which models write it, and what it looks like."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class FormatEntry:
    """One name of a format."""

    path: str
    """Module in `jaxllm.serving.reply.formats`, and what in it makes the format. It is imported when it is named."""
    models: str
    looks: str
    """A call, or reasoning, in short, in Markdown."""


TOOL_FORMATS: Final[Mapping[str, FormatEntry]] = {
    "apertus": FormatEntry("apertus:Apertus", "Apertus", '`<|tools_prefix|>[{"name": {...}}]`'),
    "cohere_command3": FormatEntry("json_tags:cohere", "Command R7B, A", '`<|START_ACTION|>[{"tool_name": ...}]`'),
    "cohere_command4": FormatEntry("json_tags:cohere", "Command A and later", "as `cohere_command3`"),
    "deepseek_v3": FormatEntry("deepseek:DeepSeekV3", "DeepSeek-V3, R1", "tokens, and arguments as Markdown"),
    "deepseek_v31": FormatEntry("deepseek:DeepSeekV31", "DeepSeek-V3.1", "tokens, and arguments"),
    "deepseek_v32": FormatEntry("value_tag_families:deepseek_v32", "DeepSeek-V3.2", "as `minimax_m2`, with DSML"),
    "deepseek_v4": FormatEntry("value_tag_families:deepseek_v4", "DeepSeek-V4", "as `deepseek_v32`"),
    "deepseek_v41": FormatEntry("value_tag_families:deepseek_v41", "DeepSeek-V4.1", "as `deepseek_v32`"),
    "dots": FormatEntry("value_tag_families:dots", "dots", "as `minimax_m2`, in `<dots_function_call>`"),
    "ernie45": FormatEntry("hermes:Hermes", "ERNIE 4.5 Thinking", "as `hermes`"),
    "functiongemma": FormatEntry("gemma:functiongemma", "FunctionGemma", "`call:name{a:<escape>x<escape>}` in tags"),
    "gemma4": FormatEntry("gemma:gemma4", "Gemma 4", '`<|tool_call>call:name{a:<|"|>x<|"|>}`'),
    "gigachat3": FormatEntry("json_tags:gigachat3", "GigaChat 3", '`<|function_call|>{"name": ...}`'),
    "glm45": FormatEntry("value_tag_families:glm45", "GLM-4.5, 4.6", "`<tool_call>name<arg_key>a</arg_key>...`"),
    "glm47": FormatEntry("value_tag_families:glm47", "GLM-4.7 and later", "as `glm45`, without newlines"),
    "granite": FormatEntry("granite:Granite", "Granite 3", '`<|tool_call|>[{"name": ..., "arguments": {...}}]`'),
    "granite-20b-fc": FormatEntry("json_tags:granite_20b_fc", "Granite-20B", '`<function_call> {"name": ...}`'),
    "granite4": FormatEntry("hermes:Hermes", "Granite 4", "as `hermes`"),
    "hermes": FormatEntry("hermes:Hermes", "Hermes 2 and 3, Qwen2.5, Qwen3, `demo`", '`<tool_call>{"name": ...}`'),
    "hunyuan_a13b": FormatEntry("json_tags:jamba", "Hunyuan-A13B", "as `jamba`"),
    "hy_v3": FormatEntry("value_tag_families:hunyuan_v3", "Hunyuan 3", "as `glm45`, with `<tool_sep>`"),
    "inkling": FormatEntry("inkling:Inkling", "Inkling", '`<|content_invoke_tool_json|>{"name": ..., "args": ...}`'),
    "internlm": FormatEntry("json_tags:internlm", "InternLM 2, 2.5, 3", '`<|action_start|><|plugin|>{"name": ...}`'),
    "jamba": FormatEntry("json_tags:jamba", "Jamba", '`<tool_calls>[{"name": ...}]`'),
    "k2_horizon": FormatEntry("value_tag_families:k2_horizon", "K2 Horizon", "as `glm45`, with `ifm|` in the tags"),
    "kimi_k2": FormatEntry("named_json:kimi_k2", "Kimi K2", "`functions.name:0` and arguments, in tokens"),
    "kimi_k3": FormatEntry("value_tag_families:kimi_k3", "Kimi K3", '`<|open|>call tool="name" index="1"<|sep|>...`'),
    "lfm2": FormatEntry("pythonic:lfm2", "LFM2", "as `pythonic`, in tokens"),
    "ling3": FormatEntry("value_tag_families:glm47", "Ling 3", "as `glm47`"),
    "llama3_json": FormatEntry("llama:Llama3Json", "Llama 3.1, 3.2, 3.3", '`{"name": ..., "parameters": {...}}`'),
    "llama4_json": FormatEntry("llama:Llama3Json", "Llama 4", "as `llama3_json`"),
    "llama4_pythonic": FormatEntry("pythonic:Pythonic", "Llama 4", "as `pythonic`, or in tokens"),
    "longcat": FormatEntry("json_tags:longcat", "LongCat-Flash", '`<longcat_tool_call>{"name": ...}`'),
    "mimo": FormatEntry("value_tag_families:qwen3_coder", "MiMo", "as `qwen3_coder`"),
    "minicpm5": FormatEntry("value_tag_families:minicpm5", "MiniCPM5", '`<function name="name"><param name="a">1`'),
    "minimax_m2": FormatEntry(
        "value_tag_families:minimax_m2", "MiniMax-M2", '`<invoke name="name"><parameter name="a">1` in tags'
    ),
    "minimax_m3": FormatEntry("minimax_m3:MiniMaxM3", "MiniMax-M3", '`<invoke name="name"><a>1</a>`, marked'),
    "mistral": FormatEntry("mistral:Mistral", "Mistral, tokenizers up to v7", '`[TOOL_CALLS][{"name": ...}]`'),
    "mistral_v11": FormatEntry("mistral:MistralNamed", "newer Mistral, Magistral", "`[TOOL_CALLS]name[ARGS]{...}`"),
    "olmo3": FormatEntry("pythonic:olmo3", "OLMo 3", "`<function_calls>name(a=1)`, one in a line"),
    "openai": FormatEntry("harmony:Harmony", "gpt-oss (harmony)", "a message `to=functions.name`"),
    "phi4_mini_json": FormatEntry("json_tags:phi4_mini", "Phi-4-mini", '`functools[{"name": ...}]`, or in tokens'),
    "plamo3": FormatEntry("named_json:plamo3", "PLaMo 3", "name and arguments, in tags"),
    "poolside_v1": FormatEntry("value_tag_families:glm45", "Laguna", "as `glm45`"),
    "pythonic": FormatEntry("pythonic:Pythonic", "Llama 3.2 (small)", '`[name(a=1, b="x")]` as the reply'),
    "qwen3_coder": FormatEntry(
        "value_tag_families:qwen3_coder", "Qwen3-Coder, Nemotron 3", "`<function=name><parameter=a>1` in tags"
    ),
    "qwen3_json": FormatEntry("hermes:Hermes", "Qwen2.5, QwQ, Qwen3", "as `hermes`"),
    "qwen3_xml": FormatEntry("value_tag_families:qwen3_coder", "Qwen3-Coder, Qwen3.5", "as `qwen3_coder`"),
    "seed_oss": FormatEntry("value_tag_families:seed_oss", "Seed-OSS", "as `qwen3_coder`, in `<seed:tool_call>`"),
    "step3": FormatEntry("value_tag_families:step3", "Step-3", "as `minimax_m2`, with `steptml:`, in tokens"),
    "step3p5": FormatEntry("value_tag_families:qwen3_coder", "Step-3.5", "as `qwen3_coder`"),
    "step5": FormatEntry("value_tag_families:qwen3_coder", "Step-5", "as `qwen3_coder`"),
    "xlam": FormatEntry("json_tags:xlam", "xLAM", '`[{"name": ...}]` as the reply, or in tags'),
}

_THINK = "`<think>...</think>`"
_OPEN = "`...</think>`; the first tag may be missing"

REASONING_FORMATS: Final[Mapping[str, FormatEntry]] = {
    "cohere_command3": FormatEntry("thinking:cohere", "Command A Reasoning", "`<|START_THINKING|>...<|END_THINKING|>`"),
    "cohere_command4": FormatEntry("thinking:cohere", "Command A and later", "as `cohere_command3`"),
    "deepseek_r1": FormatEntry("thinking:think_always", "DeepSeek-R1, its distillates", _OPEN),
    "deepseek_v3": FormatEntry("thinking:think", "DeepSeek-V3.1, V3.2 with `thinking=true`", _THINK),
    "deepseek_v4": FormatEntry("thinking:deepseek_v4", "DeepSeek-V4", _THINK),
    "deepseek_v41": FormatEntry("thinking:deepseek_v41", "DeepSeek-V4.1", _THINK),
    "ernie45": FormatEntry("thinking:ernie45", "ERNIE 4.5 Thinking", "`...</think>`, then `<response>`"),
    "gemma4": FormatEntry("thinking:gemma4", "Gemma 4", "`<|channel>thought...<channel|>`"),
    "glm45": FormatEntry("thinking:glm45", "GLM-4.5, 4.6", _THINK),
    "glm47": FormatEntry("thinking:glm45", "GLM-4.7 and later", _THINK),
    "granite": FormatEntry("thinking:granite", "Granite 3.2, 3.3", "`Here is my thought process: ...`"),
    "granite_thinking_parser": FormatEntry("thinking:think", "Granite 4.2", _THINK),
    "holo2": FormatEntry("thinking:think_always", "Holo2", _OPEN),
    "hunyuan_a13b": FormatEntry("thinking:hunyuan_a13b", "Hunyuan-A13B", f"{_THINK}, then `<answer>`"),
    "hy_v3": FormatEntry("thinking:think", "Hunyuan 3", _THINK),
    "inkling": FormatEntry("inkling:Inkling", "Inkling", "blocks after `<|content_thinking|>`"),
    "k2_horizon": FormatEntry("thinking:k2_horizon", "K2 Horizon", "`<ifm|think>...</ifm|think>`"),
    "kimi_k2": FormatEntry("thinking:kimi_k2", "Kimi-K2-Thinking", _THINK),
    "kimi_k3": FormatEntry("thinking:kimi_k3", "Kimi K3", "`<|open|>think<|sep|>...<|close|>think<|sep|>`"),
    "ling3": FormatEntry("thinking:glm45", "Ling 3", _THINK),
    "mimo": FormatEntry("thinking:think", "MiMo", _THINK),
    "minicpmv": FormatEntry("thinking:think", "MiniCPM-V", _THINK),
    "minimax_m2": FormatEntry("thinking:think_always", "MiniMax-M2", _OPEN),
    "minimax_m2_append_think": FormatEntry("thinking:AppendThink", "MiniMax-M2", "remains in the answer"),
    "minimax_m3": FormatEntry("thinking:minimax_m3", "MiniMax-M3", "`<mm:think>...</mm:think>`"),
    "mistral": FormatEntry("thinking:mistral", "Magistral with its system prompt", "`[THINK]...[/THINK]`"),
    "nemotron_v3": FormatEntry("thinking:think", "Nemotron 3", _THINK),
    "olmo3": FormatEntry("thinking:think_always", "OLMo 3 Think", _OPEN),
    "openai": FormatEntry("harmony:Harmony", "gpt-oss (harmony)", "messages in the channel `analysis`"),
    "openai_gptoss": FormatEntry("harmony:Harmony", "gpt-oss (harmony)", "as `openai`"),
    "plamo3": FormatEntry("thinking:plamo3", "PLaMo 3", "tags with `begin_think` and `end_think`"),
    "poolside_v1": FormatEntry("thinking:think", "Laguna", _THINK),
    "qwen3": FormatEntry("thinking:think", "Qwen3, QwQ, and others with these tags", _THINK),
    "seed_oss": FormatEntry("thinking:seed_oss", "Seed-OSS", "`<seed:think>...</seed:think>`"),
    "step3": FormatEntry("thinking:think_always", "Step-3", _OPEN),
    "step3p5": FormatEntry("thinking:think_always", "Step-3.5", _OPEN),
    "step5": FormatEntry("thinking:think_always", "Step-5", _OPEN),
}


def page_table(entries: Mapping[str, FormatEntry]) -> str:
    """The formats as a table of Markdown, for the documentation."""
    cells = ((f"`{name}`", entry.models, entry.looks.replace("|", "\\|")) for name, entry in entries.items())
    return "\n".join(["| format | models | looks |", "|---|---|---|", *(f"| {' | '.join(row)} |" for row in cells), ""])
