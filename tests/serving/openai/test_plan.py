"""Tools and reasoning change prompt, parameters and reading; no server is needed."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tokenizers import AddedToken

from jaxllm.errors import RequestError
from jaxllm.requests.sampling_params import SamplingParams
from jaxllm.requests.structured_outputs import StructuredOutputsParams
from jaxllm.serving.openai.chat.plan import ReplyPlan, plan_reply
from jaxllm.serving.openai.chat.tools import tool_use
from jaxllm.serving.openai.protocol.chat import ChatCompletionRequest
from jaxllm.serving.reply.parts import FunctionCall, Reply, read_whole
from jaxllm.serving.reply.reasoning_config import ReasoningConfig
from jaxllm.serving.reply.registry import ReplyFormats
from jaxllm.serving.text.detokenizer import IncrementalDecoder
from jaxllm.serving.text.tokenizer import Tokenizer

TOOL = {"type": "function", "function": {"name": "add", "parameters": {"properties": {"a": {"type": "integer"}}}}}
MARKS = ("<think>", "</think>", "<|channel|>", "<|message|>", "<|end|>", "<|start|>", "<|constrain|>", "[TOOL_CALLS]")
FORM = SamplingParams(structured_outputs=StructuredOutputsParams(choice=["yes"]))


@pytest.fixture(scope="module")
def tokenizer(demo_folder: Path) -> Tokenizer:
    """The demo model's, with special tokens of other models."""
    from transformers import AutoTokenizer

    hf = AutoTokenizer.from_pretrained(demo_folder)
    hf.backend_tokenizer.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in MARKS])
    return Tokenizer(hf)


def plan(
    tokenizer: Tokenizer, formats: ReplyFormats, params: SamplingParams | None = None, prompt: str = "p", **fields: Any
) -> ReplyPlan:
    given = {"messages": [{"role": "user", "content": "hi"}], **fields}
    body = msgspec.convert(given, ChatCompletionRequest)
    return plan_reply(formats, tokenizer, body, tool_use(body), prompt, params or SamplingParams())


def test_nothing_to_tell_apart(tokenizer: Tokenizer) -> None:
    assert plan(tokenizer, ReplyFormats()) == ReplyPlan(prompt="p", params=SamplingParams())
    formats = ReplyFormats.choose("hermes", None, "")
    assert plan(tokenizer, formats).new_parser is None, "no tools: the quick way"
    assert plan(tokenizer, formats, tools=[TOOL], tool_choice="none").new_parser is None


def test_tools_of_models_that_are_not_known(tokenizer: Tokenizer) -> None:
    with pytest.raises(RequestError, match=r"--tool-call-parser and one of .*hermes") as caught:
        plan(tokenizer, ReplyFormats(), tools=[TOOL])
    assert caught.value.parameter == "tools"


def test_models_that_may_reason(tokenizer: Tokenizer) -> None:
    guessed, explicit = ReplyFormats.choose(None, None, "<think>"), ReplyFormats.choose(None, "qwen3", "")
    assert plan(tokenizer, guessed, FORM).prompt == "p", "answers at once"
    assert plan(tokenizer, guessed, FORM).params.reasoning_end_token_ids is None
    end = [tokenizer.token_ids["</think>"]]
    for made in (
        plan(tokenizer, explicit, FORM),
        plan(tokenizer, guessed, FORM, chat_template_kwargs={"enable_thinking": True}),
        plan(tokenizer, guessed, SamplingParams(thinking_token_budget=5)),
    ):
        assert made.prompt == "p<think>\n"
        assert made.params.reasoning_end_token_ids == end
    assert plan(tokenizer, explicit).prompt == "p", "nothing hinges on it"
    opened = plan(tokenizer, guessed, FORM, prompt="p<think>\n")
    assert opened.params.reasoning_end_token_ids == end
    closed = plan(tokenizer, explicit, FORM, prompt="p<think>\n\n</think>\n\n")
    assert (closed.prompt, closed.params) == ("p<think>\n\n</think>\n\n", FORM)


def test_forced_calls_leave_reasoning_to_the_model(tokenizer: Tokenizer) -> None:
    formats = ReplyFormats.choose("hermes", "qwen3", "")
    free = plan(tokenizer, formats, tools=[TOOL], tool_choice="required")
    assert free.prompt == "p"
    assert free.params.reasoning_end_token_ids is None
    assert free.params.structured_outputs is not None
    assert f"<[{tokenizer.token_ids['<think>']}]>" in (free.params.structured_outputs.grammar or "")
    inside = plan(tokenizer, formats, prompt="p<think>", tools=[TOOL], tool_choice="required")
    assert inside.params.reasoning_end_token_ids is not None
    assert inside.params.structured_outputs is not None
    assert f"<[{tokenizer.token_ids['<think>']}]>" not in (inside.params.structured_outputs.grammar or "")


def test_harmony(tokenizer: Tokenizer) -> None:
    formats = ReplyFormats.choose("openai", None, "<|channel|>")
    form = plan(tokenizer, formats, FORM)
    assert form.params.reasoning_end_token_ids == tokenizer.encode(["<|channel|>final<|message|>"])[0]
    forced = plan(tokenizer, formats, tools=[TOOL], tool_choice="required")
    assert forced.params.reasoning_end_token_ids is None
    assert forced.preserved_tokens == {tokenizer.token_ids[mark] for mark in MARKS[2:7]}
    assert form.count_reasoning is not None
    counter = form.count_reasoning()
    counter.push(tokenizer.encode(["<|channel|>analysis<|message|>Hi<|end|><|start|>assistant<|channel|>final"])[0])
    assert counter.count == len(tokenizer.encode(["Hi"])[0])


def test_special_tokens_that_are_marks_stay_in_the_text(tokenizer: Tokenizer) -> None:
    made = plan(tokenizer, ReplyFormats.choose("mistral", None, ""), tools=[TOOL])
    (token_ids,) = tokenizer.encode(['So<|end|>[TOOL_CALLS][{"name": "add", "arguments": {"a": 1}}]<|im_start|>'])
    decoder = IncrementalDecoder(tokenizer, preserved_tokens=made.preserved_tokens)
    text = "".join(map(decoder.push, token_ids)) + decoder.flush()
    assert text == 'So[TOOL_CALLS][{"name": "add", "arguments": {"a": 1}}]'
    assert made.new_parser is not None
    reply = read_whole(made.new_parser(), text)
    assert reply == Reply("So", None, [FunctionCall(reply.tool_calls[0].id, "add", '{"a": 1}')])


def test_what_closes_reasoning_whose_budget_is_used_up(tokenizer: Tokenizer) -> None:
    config = ReasoningConfig(end="Time is up.</think>")
    formats = ReplyFormats.choose(None, "qwen3", "", config=config)
    made = plan(tokenizer, formats, SamplingParams(thinking_token_budget=5)).params
    assert tokenizer.decode(made.reasoning_end_token_ids or [], skip_special_tokens=False) == "</think>"
    assert tokenizer.decode(made.reasoning_closing_token_ids or [], skip_special_tokens=False) == "Time is up.</think>"
    plain = plan(tokenizer, ReplyFormats.choose(None, "qwen3", ""), SamplingParams(thinking_token_budget=5)).params
    assert plain.reasoning_closing_token_ids is None
