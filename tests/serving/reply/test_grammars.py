"""Grammars of forced calls: whatever they allow, the same format's parser reads as valid calls."""

import json
import random
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from jaxllm.serving.reply.catalogue import REASONING_FORMATS, TOOL_FORMATS
from jaxllm.serving.reply.compose import calls_grammar, make_parser, parameters_schema
from jaxllm.serving.reply.guess import format_of_calls
from jaxllm.serving.reply.parts import Reply, read_whole
from jaxllm.serving.reply.registry import reasoning_format, tool_format

FUNCTIONS: dict[str, tuple[dict[str, Any] | None, bool]] = {
    "now": (None, False),
    "add-2": (
        {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "number"}}, "required": ["a"]},
        True,
    ),
    "note": (
        {
            "$defs": {"size": {"enum": ["s", "it's", "1"]}, "tree": {"type": "object", "properties": {
                "leaf": {"type": "boolean"}, "more": {"$ref": "#/$defs/tree"}}, "additionalProperties": False}},
            "properties": {
                "text": {"type": "string"},
                "size": {"$ref": "#/$defs/size"},
                "tags": {"type": "array", "items": {"type": "string", "maxLength": 4}, "maxItems": 3},
                "tree": {"anyOf": [{"$ref": "#/$defs/tree"}, {"type": "null"}]},
                "kind": {"const": "k\n"},
            },
            "required": ["size", "kind"],
            "not": {"required": ["nothing"]},
        },
        False,
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def backend(demo_folder: Path) -> Backend:
    """The demo model's tokenizer, with the special tokens of every format."""
    made = Backend.from_file(str(demo_folder / "tokenizer.json"))
    formats = [tool_format(name) for name in TOOL_FORMATS] + [reasoning_format(name) for name in REASONING_FORMATS]
    markers = sorted({marker for each in formats for marker in each.markers if not marker.startswith("Here")})
    made.add_special_tokens([AddedToken(marker, special=True, normalized=False) for marker in markers])
    return made


@pytest.fixture(scope="module")
def vocabulary(backend: Backend) -> LLTokenizer:
    return LLTokenizer(backend.to_str(), n_vocab=backend.get_vocab_size(), eos_token=backend.token_to_id("<|im_end|>"))


def token_ids(backend: Backend) -> dict[str, int]:
    return {token.content: token_id for token_id, token in backend.get_added_tokens_decoder().items()}


def written(backend: Backend, vocabulary: LLTokenizer, grammar: str, rng: random.Random) -> str | None:
    """A text that the grammar allows; None: it became too long."""
    matcher = LLMatcher(vocabulary, LLMatcher.grammar_from_lark(grammar))
    assert not matcher.is_error(), matcher.get_error()
    end = backend.token_to_id("<|im_end|>")
    ends = {backend.token_to_id(text) for text in ('"', "}", ")", "]", "\n", "</", "<|im_end|>")}
    tokens: list[int] = []
    for _ in range(400):
        allowed = np.flatnonzero(np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little"))
        assert len(allowed), "the grammar leads nowhere"
        closing = [token for token in allowed if token in ends]
        token = int(rng.choice(closing if closing and rng.random() < 0.5 else allowed))
        assert matcher.consume_token(token)
        if token != end:
            tokens.append(token)
        if token == end or matcher.is_stopped():
            return str(backend.decode(tokens, skip_special_tokens=False))
    return None


def parsed(backend: Backend, vocabulary: LLTokenizer, name: str, seed: int, **how: Any) -> Reply | None:
    """The reply read from a text that a grammar of all functions allows."""
    reasoning = how.get("reasoning")
    grammar = calls_grammar(tool_format(name), token_ids(backend), FUNCTIONS, **how)
    assert grammar is not None
    text = written(backend, vocabulary, grammar, random.Random(seed))
    if text is None:
        return None
    schemas = {name: schema or {} for name, (schema, _) in FUNCTIONS.items()}
    reply = read_whole(make_parser(tool_format(name), reasoning, schemas=schemas), text)
    for call in reply.tool_calls:
        jsonschema.validate(json.loads(call.arguments), schemas[call.name], jsonschema.Draft202012Validator)
    return reply


@pytest.mark.parametrize("name", {entry.path: name for name, entry in TOOL_FORMATS.items()}.values())
@settings(max_examples=8)
@given(seed=st.integers(0, 2**32))
def test_forced_calls_are_read_and_valid(backend: Backend, vocabulary: LLTokenizer, name: str, seed: int) -> None:
    reply = parsed(backend, vocabulary, name, seed)
    assert reply is None or (reply.tool_calls and reply.content is None)


@pytest.mark.parametrize("name", ["hermes", "mistral_v11", "qwen3_coder"])
@settings(max_examples=5)
@given(seed=st.integers(0, 2**32))
def test_exactly_one_call(backend: Backend, vocabulary: LLTokenizer, name: str, seed: int) -> None:
    reply = parsed(backend, vocabulary, name, seed, several=False, reasoning=reasoning_format("qwen3"))
    assert reply is None or (len(reply.tool_calls) == 1 and reply.content is None)


@settings(max_examples=10)
@given(seed=st.integers(0, 2**32))
def test_text_may_come_instead(backend: Backend, vocabulary: LLTokenizer, seed: int) -> None:
    for name in ("kimi_k2", "minimax_m2"):
        parsed(backend, vocabulary, name, seed, optional=True)
    reply = parsed(backend, vocabulary, "hermes", seed, optional=True)
    assert reply is None or "tool_call" not in (reply.content or "")


@settings(max_examples=10)
@given(seed=st.integers(0, 2**32), name=st.sampled_from(["hermes", "llama3_json", "pythonic"]))
def test_json_may_come_instead(backend: Backend, vocabulary: LLTokenizer, seed: int, name: str) -> None:
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    reply = parsed(backend, vocabulary, name, seed, optional=True, instead=schema)
    if reply is not None and not reply.tool_calls:
        jsonschema.validate(json.loads(reply.content or ""), schema)


def test_formats_that_cannot_say_where_calls_begin(backend: Backend) -> None:
    assert calls_grammar(tool_format("llama3_json"), {}, FUNCTIONS, optional=True) is None
    assert calls_grammar(tool_format("hermes"), {}, FUNCTIONS, optional=True) is None
    assert calls_grammar(tool_format("openai"), token_ids(backend), FUNCTIONS, optional=True) is None
    assert calls_grammar(tool_format("hermes"), token_ids(backend), FUNCTIONS, optional=True) is not None
    # A character comes before the token.
    assert calls_grammar(tool_format("deepseek_v32"), token_ids(backend), FUNCTIONS, optional=True) is None
    assert calls_grammar(tool_format("xlam"), token_ids(backend), FUNCTIONS, optional=True) is None


def test_what_cannot_be_enforced_is_an_error_where_it_is_strict(vocabulary: LLTokenizer) -> None:
    schema = {"type": "object", "not": {"required": ["a"]}}
    for strict in (True, False):
        grammar = calls_grammar(tool_format("hermes"), {}, {"f": (schema, strict)})
        assert grammar is not None
        source = LLMatcher.grammar_from_lark(grammar)
        wrong, _ = LLMatcher.validate_grammar_with_warnings(source, vocabulary)
        assert wrong is strict


def test_schemas_of_arguments() -> None:
    assert parameters_schema(None, strict=True)["additionalProperties"] is False
    assert parameters_schema({"additionalProperties": True}, strict=True)["additionalProperties"] is True
    assert "additionalProperties" not in parameters_schema({"$ref": "#/$defs/x"}, strict=False)


PLACE = {"properties": {"place": {"const": "Oak Hill"}, "days": {"const": 3}}, "required": ["place", "days"]}


@pytest.mark.parametrize("name", {entry.path: name for name, entry in TOOL_FORMATS.items()}.values())
def test_a_template_that_writes_calls_in_a_format_gives_it_away(
    backend: Backend, vocabulary: LLTokenizer, name: str
) -> None:
    grammar = calls_grammar(tool_format(name), token_ids(backend), {"find_place": (PLACE, False)}, several=False)
    assert grammar is not None
    call = next(text for seed in range(9) if (text := written(backend, vocabulary, grammar, random.Random(seed))))
    if name in ("openai", "inkling"):
        call = (
            tool_format(name).separator.partition("<|start|>assistant")[2]
            + call[call.rindex("<|channel|>") if name == "openai" else call.rindex("<|content_invoke") :]
        )

    def render(messages: list[Any], *, tools: list[Any], add_generation_prompt: bool) -> str:
        turns = [
            f"<|im_start|>{each['role']}\n{call if each.get('tool_calls') else each['content']}<|im_end|>\n"
            for each in messages
        ]
        return f"Tools: {json.dumps(tools)}\n{''.join(turns)}{'<|im_start|>assistant' * add_generation_prompt}"

    guessed = format_of_calls(render, tool_format, None)
    assert guessed is not None
    assert TOOL_FORMATS[guessed].path == TOOL_FORMATS[name].path, call
