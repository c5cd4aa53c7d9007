"""Datasets: the same for the same seed, of the lengths asked for, counted by the tokenizer itself."""

import json
from array import array
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxllm.errors import ConfigError
from jaxllm.serving.bench.datasets.catalogue import Dataset, PromptForm, assign_models
from jaxllm.serving.bench.datasets.request import LoadRequest
from jaxllm.serving.bench.datasets.synthetic import Vocabulary, random_requests
from jaxllm.serving.bench.options import DatasetOptions
from jaxllm.serving.text.chat import render_chat
from jaxllm.serving.text.tokenizer import Tokenizer

SONNET = "".join(f"Line {number} tells of the cat and the dog that ran away.\n" for number in range(60))


def make(tokenizer: Tokenizer, form: PromptForm = "tokens", seed: int = 0, **options: Any) -> list[LoadRequest]:
    return Dataset(DatasetOptions(**options), lambda: tokenizer, seed, form).requests()


def count(tokenizer: Tokenizer, text: Any) -> int:
    return len(tokenizer.encode([text], add_special_tokens=False)[0])


def file(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def options_of_each(folder: Path) -> dict[str, dict[str, Any]]:
    talk = "The cat sat on the mat and the dog ran to the cat"
    turns = [[{"value": f"{talk} {number}"}, {"value": talk * (1 + number % 2)}] for number in range(9)]
    lines = [json.dumps({"prompt": f"one {number}", "output_tokens": 2 + number}) for number in range(9)]
    rows = "\n".join(f"{number},GPT-4,{5 + number},{number},0,x" for number in range(9))
    head = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    return {
        "random": {"random_input_len": 9, "random_output_len": 5, "random_range_ratio": 0.5, "random_prefix_len": 4},
        "prefix_repetition": {"prefix_repetition_num_prefixes": 3, "prefix_repetition_prefix_len": 6},
        "sharegpt": {"dataset_path": file(folder, "s.json", json.dumps([{"conversations": each} for each in turns]))},
        "sonnet": {"dataset_path": file(folder, "sonnet.txt", SONNET)},
        "custom": {"dataset_path": file(folder, "c.jsonl", "\n".join(lines))},
        "burstgpt": {"dataset_path": file(folder, "b.csv", f"{head}{rows}\n1,ChatGPT,3,4,7,x\n")},
    }


@pytest.mark.parametrize("name", ["random", "prefix_repetition", "sharegpt", "sonnet", "custom", "burstgpt"])
@pytest.mark.parametrize("form", ["tokens", "text", "template"])
def test_the_same_seed_makes_the_same_requests(
    tokenizer: Tokenizer, name: str, form: PromptForm, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"dataset_name": name, "num_prompts": 12, **options_of_each(tmp_path)[name]}
    first, second, other = (make(tokenizer, form, seed, **options) for seed in (1, 1, 2))
    assert len(first) == 12
    assert first == second
    assert first != other
    for request in first:
        assert request.output_tokens >= 1
        if request.prompt_tokens and not isinstance(request.prompt, str):
            assert len(request.prompt) == request.prompt_tokens
        elif request.prompt_tokens and name != "sonnet":
            assert count(tokenizer, request.prompt) == request.prompt_tokens


@pytest.mark.parametrize("length", [1, 7, 60])
@pytest.mark.parametrize("kind", ["tokenizer", "fallback_tokenizer"])
def test_random_texts_have_the_tokens_asked_for(request: pytest.FixtureRequest, kind: str, length: int) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(kind)
    requests = make(tokenizer, "text", num_prompts=40, random_input_len=length)
    found = [count(tokenizer, each.prompt) for each in requests]
    assert found == [each.prompt_tokens for each in requests]
    assert found == [length] * 40


def test_random_lengths_vary_by_the_ratio(tokenizer: Tokenizer) -> None:
    requests = make(tokenizer, num_prompts=600, input_len=100, output_len=10, random_range_ratio=0.5)
    lengths = {request.prompt_tokens for request in requests}
    assert (min(lengths), max(lengths)) == (50, 150)
    assert {request.output_tokens for request in requests} == set(range(5, 16))
    assert not {token for request in requests for token in request.prompt} & tokenizer.added_tokens.keys()


def test_random_prompts_share_their_prefix(tokenizer: Tokenizer) -> None:
    requests = make(tokenizer, num_prompts=5, input_len=8, random_prefix_len=3)
    assert {len(request.prompt) for request in requests} == {11}
    assert len({tuple(request.prompt[:3]) for request in requests}) == 1
    assert len({tuple(request.prompt) for request in requests}) == 5


def test_a_request_may_hold_several_prompts() -> None:
    rng = np.random.default_rng(0)
    requests = random_requests(5, 4, 1, Vocabulary(range(9), rng), rng, batch_size=2)
    assert [(request.inputs, request.prompt_tokens) for request in requests] == [(2, 8), (2, 8), (1, 4)]
    assert all(isinstance(prompt, array) for request in requests for prompt in request.prompt)


def test_every_prefix_is_repeated_as_often(tokenizer: Tokenizer) -> None:
    requests = make(
        tokenizer, dataset_name="prefix_repetition", num_prompts=12, prefix_repetition_num_prefixes=3,
        prefix_repetition_prefix_len=6, prefix_repetition_suffix_len=4, output_len=7,
    )  # fmt: skip
    prefixes = [tuple(request.prompt[:6]) for request in requests]
    assert sorted(prefixes.count(prefix) for prefix in set(prefixes)) == [4, 4, 4]
    assert {(len(request.prompt), request.output_tokens) for request in requests} == {(10, 7)}


def test_a_sonnet_fills_the_length_and_shares_its_prefix(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = file(tmp_path, "sonnet.txt", SONNET)
    some: dict[str, Any] = {"dataset_name": "sonnet", "dataset_path": path, "num_prompts": 6, "sonnet_input_len": 600}
    requests = make(tokenizer, "text", **some)
    line = count(tokenizer, SONNET) / 60
    for request in requests:
        assert 600 - 2 * line < count(tokenizer, request.prompt) <= 600
    texts = [str(request.prompt).split("\n") for request in requests]
    assert len({tuple(text[:3]) for text in texts}) == 1
    assert len({tuple(text) for text in texts}) == 6
    # Rendered as a message, it is as long with what the template writes.
    assert all(request.prompt_tokens <= 600 for request in make(tokenizer, "template", **some))


def test_a_file_is_taken_in_order_and_again(tokenizer: Tokenizer, tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "dataset_name": "file",
        "dataset_path": file(tmp_path, "p.txt", "one\n\ntwo\u2028still two\n"),
    }
    requests = make(tokenizer, num_prompts=3, disable_shuffle=True, **given)
    assert [request.prompt for request in requests] == ["one", "two\u2028still two", "one"]
    assert {request.output_tokens for request in requests} == {256}
    assert len(make(tokenizer, num_prompts=9, no_oversample=True, **given)) == 2


def test_a_custom_prompt_is_a_message_unless_told_otherwise(tokenizer: Tokenizer, tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "dataset_name": "custom",
        "dataset_path": file(tmp_path, "p.jsonl", '{"prompt": "Hi"}'),
        "num_prompts": 1,
    }
    (request,) = make(tokenizer, "template", **given)
    rendered = render_chat(tokenizer, [{"role": "user", "content": "Hi"}])
    assert request.prompt == tokenizer.encode([rendered], add_special_tokens=False)[0]
    (thinking,) = make(tokenizer, "template", chat_template_kwargs={"thinking": True}, **given)
    rendered = render_chat(tokenizer, [{"role": "user", "content": "Hi"}], chat_template_kwargs={"thinking": True})
    assert "<think>" in rendered
    assert thinking.prompt == tokenizer.encode([rendered], add_special_tokens=False)[0]
    (plain,) = make(tokenizer, "template", skip_chat_template=True, **given)
    assert plain.prompt == "Hi"


def test_output_lengths_of_a_custom_file(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = file(tmp_path, "p.jsonl", '{"prompt": "a", "output_tokens": 3}\n{"messages": [{"role": "user"}]}')
    given: dict[str, Any] = {"dataset_name": "custom", "dataset_path": path, "num_prompts": 2, "disable_shuffle": True}
    assert [request.output_tokens for request in make(tokenizer, **given)] == [3, 256]
    assert [request.output_tokens for request in make(tokenizer, custom_output_len=9, **given)] == [9, 9]
    assert [request.is_chat for request in make(tokenizer, **given)] == [False, True]
    with pytest.raises(ConfigError, match=r"p.jsonl, line 2: output_tokens=None: expected a whole number"):
        make(tokenizer, custom_output_len=-1, **given)


def test_what_vllm_leaves_out_of_sharegpt_is_left_out(tokenizer: Tokenizer, tmp_path: Path) -> None:
    talk = "The cat sat on the mat and the dog ran away"
    pairs = [[talk, talk], [".", talk], [talk, "."], [talk * 500, talk], [talk]]
    text = json.dumps([{"conversations": [{"value": value} for value in pair]} for pair in pairs])
    given: dict[str, Any] = {
        "dataset_name": "sharegpt",
        "dataset_path": file(tmp_path, "s.json", text),
        "num_prompts": 9,
    }
    (request,) = make(tokenizer, no_oversample=True, **given)
    assert request.prompt == talk
    assert request.output_tokens == count(tokenizer, talk)
    # With a length that is given, the file's answer may be of any.
    assert len(make(tokenizer, no_oversample=True, sharegpt_output_len=8, **given)) == 2


def test_lengths_of_burstgpt_are_those_of_answered_requests(tokenizer: Tokenizer, tmp_path: Path) -> None:
    text = "Model,Request tokens,Response tokens\nGPT-4,5,6\nGPT-4,7,0\nChatGPT,8,9\nGPT-4,3,2\n"
    path = file(tmp_path, "b.csv", text)
    requests = make(tokenizer, dataset_name="burstgpt", dataset_path=path, num_prompts=2, disable_shuffle=True)
    assert [(len(request.prompt), request.output_tokens) for request in requests] == [(5, 6), (3, 2)]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("custom", "\n\n", "contains no "),
        ("custom", "{}", "line 1: expected an object with"),
        ("custom", '{"prompt": ["a"]}', "line 1: expected an object with"),
        ("custom", '{"prompt": "a"}\n{', "line 2: not valid JSON"),
        ("custom", '{"prompt": "a", "output_tokens": "9"}', "line 1: output_tokens='9': expected a whole number"),
        ("sharegpt", "{}", "expected a JSON list"),
        ("sharegpt", '[{"conversations": [{"value": 1}, {}]}]', "item 0: expected turns with a text 'value'"),
        ("sharegpt", "[]", "contains no "),
        ("sonnet", "\n", "contains no lines"),
        ("burstgpt", "a,b\n1,2\n", "the header has no column 'Model'"),
        ("burstgpt", "Model,Request tokens,Response tokens\nGPT-4,x,2\n", "line 2: expected whole numbers"),
    ],
)
def test_wrong_files(tokenizer: Tokenizer, name: str, text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        make(tokenizer, dataset_name=name, dataset_path=file(tmp_path, "p.jsonl", text))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dataset_name": "sonnet"}, "--dataset-name sonnet needs --dataset-path"),
        ({"dataset_path": "x"}, "--dataset-name random does not use --dataset-path"),
        ({"random_range_ratio": 1.0}, "must be less than 1"),
        ({"dataset_name": "file", "dataset_path": "absent"}, "cannot read --dataset-path"),
        ({"dataset_name": "prefix_repetition", "num_prompts": 3}, "at least the number of prefixes, 10"),
    ],
)
def test_wrong_options(tokenizer: Tokenizer, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(tokenizer, **options)


def test_requests_for_adapters() -> None:
    requests = [LoadRequest("a", 1)] * 4
    turns = assign_models(requests, ["x", "y"], at_random=False, seed=0)
    assert [request.model for request in turns] == ["x", "y", "x", "y"]
    drawn = assign_models(requests * 20, ["x", "y"], at_random=True, seed=0)
    assert {request.model for request in drawn} == {"x", "y"}
    assert drawn == assign_models(requests * 20, ["x", "y"], at_random=True, seed=0)
