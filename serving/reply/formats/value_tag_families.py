# ruff: noqa: RUF001, RUF002  (DeepSeek's and Step's tokens are written with a wide bar)
"""The families whose calls have tags around names and values, by their chat templates and vLLM's parsers."""

from jaxllm.serving.reply.formats.value_tags import ValueTags


def qwen3_coder() -> ValueTags:
    """`<tool_call>\\n<function=add>\\n<parameter=a>\\n1\\n</parameter>\\n</function>\\n</tool_call>`."""
    return ValueTags(
        first=("<tool_call>",), head="<function=", behind_name=">", key="<parameter=", behind_key=">",
        behind_value="</parameter>", tail="</function>", last=("</tool_call>",),
        before="<tool_call>\n", after="\n</tool_call>", padding="\n",
    )  # fmt: skip


def seed_oss() -> ValueTags:
    """As Qwen3-Coder's, between `<seed:tool_call>` tags, and without lines of their own for values."""
    return ValueTags(
        first=("<seed:tool_call>",), head="<function=", behind_name=">", key="<parameter=", behind_key=">",
        behind_value="</parameter>", tail="</function>", last=("</seed:tool_call>",),
        before="<seed:tool_call>\n", after="\n</seed:tool_call>",
    )  # fmt: skip


def glm45() -> ValueTags:
    """`<tool_call>add\\n<arg_key>a</arg_key>\\n<arg_value>1</arg_value>\\n</tool_call>`."""
    return _glm("\n")


def glm47() -> ValueTags:
    """As GLM-4.5's, without newlines."""
    return _glm("")


def _glm(space: str) -> ValueTags:
    return ValueTags(
        head="<tool_call>", behind_name="", key="<arg_key>", behind_key=f"</arg_key>{space}<arg_value>",
        behind_value="</arg_value>", tail="</tool_call>", bare_name=True, space=space, separator=space,
    )  # fmt: skip


def hunyuan_v3() -> ValueTags:
    """As GLM-4.5's with `<tool_sep>` after the name, and `<tool_calls>` around all."""
    return ValueTags(
        first=("<tool_calls>",), head="<tool_call>", behind_name="<tool_sep>", key="<arg_key>",
        behind_key="</arg_key>\n<arg_value>", behind_value="</arg_value>", tail="</tool_call>", last=("</tool_calls>",),
        opening="<tool_calls>\n", closing="\n</tool_calls>", bare_name=True,
    )  # fmt: skip


def k2_horizon() -> ValueTags:
    """As GLM-4.5's, with `ifm|` in all tags, and `<ifm|tool_calls>` around all."""
    return ValueTags(
        first=("<ifm|tool_calls>",), head="<ifm|tool_call>", behind_name="", key="<ifm|arg_key>",
        behind_key="</ifm|arg_key>\n<ifm|arg_value>", behind_value="</ifm|arg_value>", tail="</ifm|tool_call>",
        last=("</ifm|tool_calls>",), opening="<ifm|tool_calls>\n", closing="\n</ifm|tool_calls>", bare_name=True,
    )  # fmt: skip


def minimax_m2() -> ValueTags:
    """`<minimax:tool_call>\\n<invoke name="add">\\n<parameter name="a">1</parameter>\\n</invoke>...`."""
    return _invoke("<minimax:tool_call>", "</minimax:tool_call>")


def dots() -> ValueTags:
    """As MiniMax-M2's, between `<dots_function_call>` tags."""
    return _invoke("<dots_function_call>", "</dots_function_call>")


def _invoke(opening: str, closing: str) -> ValueTags:
    return ValueTags(
        first=(opening,), head="<invoke name=", behind_name=">", key="<parameter name=", behind_key=">",
        behind_value="</parameter>", tail="</invoke>", last=(closing,),
        opening=f"{opening}\n", closing=f"\n{closing}", attributes=True,
    )  # fmt: skip


def deepseek_v32() -> ValueTags:
    """`<｜DSML｜function_calls>`, and `string="true"` in the tags of texts."""
    return _dsml("function_calls")


def deepseek_v4() -> ValueTags:
    """As DeepSeek-V3.2's, between `<｜DSML｜tool_calls>` tags."""
    return _dsml("tool_calls")


def deepseek_v41() -> ValueTags:
    """As DeepSeek-V4's, between `<｜DSML｜ calls>` tags, and with a space in all tags."""
    return _dsml("calls", " ")


def _dsml(around: str, space: str = "") -> ValueTags:
    begin, end = f"<｜DSML｜{space}", f"</｜DSML｜{space}"
    opening, closing = f"{begin}{around}>", f"{end}{around}>"
    return ValueTags(
        first=(opening,), head=f"{begin}invoke name=", behind_name=">", key=f"{begin}parameter name=", behind_key=">",
        behind_value=f"{end}parameter>", tail=f"{end}invoke>", last=(closing,),
        opening=f"{opening}\n", closing=f"\n{closing}", attributes=True,
        typed=(' string="true"', ' string="false"'), tokens=("｜DSML｜",),
    )  # fmt: skip


def step3() -> ValueTags:
    """As MiniMax-M2's with `steptml:` in the tags, each between tokens such as DeepSeek's."""
    return ValueTags(
        first=("<｜tool_calls_begin｜>", "<｜tool_call_begin｜>", "<｜tool_sep｜>"), words=True,
        head="<steptml:invoke name=", behind_name=">", key="<steptml:parameter name=", behind_key=">",
        behind_value="</steptml:parameter>", tail="</steptml:invoke>",
        last=("<｜tool_call_end｜>", "<｜tool_calls_end｜>"), opening="<｜tool_calls_begin｜>", separator="",
        closing="<｜tool_calls_end｜>", before="<｜tool_call_begin｜>function<｜tool_sep｜>",
        after="<｜tool_call_end｜>", attributes=True, space="",
    )  # fmt: skip


def minicpm5() -> ValueTags:
    """`<function name="add"><param name="a">1</param></function>`."""
    return ValueTags(
        head="<function name=", behind_name=">", key="<param name=", behind_key=">", behind_value="</param>",
        tail="</function>", attributes=True, space="", cdata=True,
    )  # fmt: skip


def kimi_k3() -> ValueTags:
    """`<|open|>call tool="add" index="1"<|sep|><|open|>argument key="a" type="number"<|sep|>1<|close|>argument<|sep|>`.

    Calls are between `<|open|>tools<|sep|>` and `<|close|>tools<|sep|>`.
    """
    names = {name: name for name in ("number", "boolean", "null", "object", "array")}
    return ValueTags(
        first=("<|open|>tools<|sep|>",), head="<|open|>call tool=", behind_name="<|sep|>",
        key="<|open|>argument key=", behind_key="<|sep|>", behind_value="<|close|>argument<|sep|>",
        tail="<|close|>call<|sep|>", last=("<|close|>tools<|sep|>",), opening="<|open|>tools<|sep|>", separator="",
        closing="<|close|>tools<|sep|>", space="", attributes=True, number=(' index="', '"'),
        typed=(' type="string"', ' type="{type}"'), types={**names, "integer": "number"},
        tokens=("<|open|>", "<|close|>", "<|sep|>"),
    )  # fmt: skip
