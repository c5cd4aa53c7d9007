"""Logits processors give the tokens that they should, to those that use them, and nobody else."""

import math
import re
from collections.abc import Iterator
from typing import Any

import pytest

from jaxllm.engine.engine import Engine
from jaxllm.requests.beam_options import BeamOptions
from jaxllm.requests.request import Request
from tests.e2e import processors
from tests.e2e.driving import make_engine, request, run

KINDS = [
    processors.Bias,
    processors.CompiledBans,
    processors.MinP,
    processors.CompiledMinP,
    processors.NoRepeats,
    processors.CompiledNoRepeats,
]
BIAS = {5: 6.0, 40: 5.0, 41: -3.0}
COMMON: dict[str, Any] = {"max_tokens": 12, "ignore_eos": True}

PAIRS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "bias": (
        {"logit_bias": BIAS, "seed": 3},
        {"extra_args": {"bias": {str(k): v for k, v in BIAS.items()}}, "seed": 3},
    ),
    "ban": ({"bad_words_token_ids": [[5], [40]], "seed": 4}, {"extra_args": {"ban": [5, 40]}, "seed": 4}),
    "greedy ban": (
        {"bad_words_token_ids": [[261], [40]], "temperature": 0},
        {"extra_args": {"ban": [261, 40]}, "temperature": 0},
    ),
    "min_p": ({"min_p": 0.3, "temperature": 1.7, "seed": 5}, {"extra_args": {"p": 0.3}, "temperature": 1.7, "seed": 5}),
    "compiled min_p": (
        {"min_p": 0.2, "temperature": 1.4, "seed": 6, "presence_penalty": 1.0},
        {"extra_args": {"compiled_p": 0.2}, "temperature": 1.4, "seed": 6, "presence_penalty": 1.0},
    ),
    "both": (
        {"logit_bias": BIAS, "bad_words_token_ids": [[7]], "min_p": 0.1, "seed": 7},
        {"extra_args": {"bias": {"5": 6.0, "40": 5.0, "41": -3.0}, "ban": [7], "compiled_p": 0.1}, "seed": 7},
    ),
    "min_p of what a grammar allows": (
        {"min_p": 0.3, "temperature": 1.7, "structured_outputs": {"regex": "[0-9]{60}"}, "seed": 9},
        {"extra_args": {"p": 0.3}, "temperature": 1.7, "structured_outputs": {"regex": "[0-9]{60}"}, "seed": 9},
    ),
    "compiled, of what a grammar allows": (
        {"min_p": 0.3, "temperature": 1.7, "structured_outputs": {"regex": "[0-9]{60}"}, "seed": 10},
        {
            "extra_args": {"compiled_p": 0.3},
            "temperature": 1.7,
            "seed": 10,
            "structured_outputs": {"regex": "[0-9]{60}"},
        },
    ),
    "what depends on the output": (
        {"extra_args": {"unique": True}, "temperature": 0},
        {"extra_args": {"compiled_unique": True}, "temperature": 0},
    ),
    "infinity": (
        {"allowed_token_ids": [7], "temperature": 0.5, "seed": 11},
        {"extra_args": {"bias": {"7": math.inf}}, "temperature": 0.5, "seed": 11},
    ),
    "grammar": (
        {"logit_bias": BIAS, "structured_outputs": {"regex": "[a-z ]{60}"}, "seed": 8},
        {
            "extra_args": {"bias": {"5": 6.0, "40": 5.0, "41": -3.0}},
            "structured_outputs": {"regex": "[a-z ]{60}"},
            "seed": 8,
        },
    ),
}
"""Parameters of the engine's own, and of processors that do the same."""


@pytest.fixture(scope="module")
def processing() -> Iterator[Engine]:
    engine = make_engine(max_num_seqs=24, max_num_batched_tokens=128, logits_processors=KINDS, enforce_eager=False)
    yield engine
    engine.close()


def asked(index: int, prompt: list[int], **params: Any) -> Request:
    return request(index, prompt, **{**COMMON, **params})


def test_they_give_the_tokens_of_what_is_built_in(processing: Engine, prompts: list[list[int]]) -> None:
    """All at once, with chunked prompts and asynchronous steps, as alone."""
    pairs = list(PAIRS.values())
    chosen = [prompt for prompt in prompts if len(prompt) < 300][: len(pairs)]
    built_in = run(processing, [asked(n, p, **pairs[n][0]) for n, p in enumerate(chosen)])
    ours = run(processing, [asked(n, p, **pairs[n][1]) for n, p in enumerate(chosen)])
    for index, name in enumerate(PAIRS):
        assert ours[str(index)].token_ids == built_in[str(index)].token_ids, name
    for index, prompt in enumerate(chosen):
        alone = run(processing, [asked(index, prompt, **pairs[index][1])])
        assert alone[str(index)].token_ids == ours[str(index)].token_ids
    assert processing.runner.watch.count == 0


def test_others_get_the_same_tokens_beside_them(processing: Engine, prompts: list[list[int]]) -> None:
    plain = [asked(n, prompts[n], seed=n, logprobs=2) for n in range(6)]
    before = run(processing, plain)
    users = [asked(10 + n, prompts[10 + n], extra_args={"unique": True}, seed=n, logprobs=2) for n in range(12)]
    after = run(processing, [*users, *[asked(n, prompts[n], seed=n, logprobs=2) for n in range(6)]])
    for name, answer in before.items():
        assert after[name].token_ids == answer.token_ids
    for each in users:
        tokens = after[each.request_id].token_ids
        assert len(set(tokens)) == len(tokens) == 12
        # The model's own scores, not the processor's.
        assert all(entry.logprob > -50 for entry in after[each.request_id].logprobs)
    assert any(len(set(answer.token_ids)) < 12 for answer in before.values())


@pytest.mark.parametrize(
    ("params", "parameter", "message"),
    [
        ({"extra_args": {"unique": "fails"}}, None, "NoRepeats failed: ZeroDivisionError$"),
        ({"extra_args": {"compiled_unique": "fails"}}, None, "CompiledNoRepeats failed: ZeroDivisionError$"),
        ({"extra_args": {"unique": "gives nothing"}}, None, "NoRepeats failed: TypeError$"),
        ({"extra_args": {"unique": "forbids all"}}, "logits_processors", "forbid every token"),
        ({"extra_args": {"unique": "forbids all"}, "max_tokens": 1}, "logits_processors", "forbid every token"),
        ({"extra_args": {"unique": "forbids all"}, "stop_token_ids": [0]}, "logits_processors", "forbid every token"),
        (
            {"extra_args": {"unique": True}, "reasoning_end_token_ids": [40, 40], "thinking_token_budget": 0},
            "logits_processors",
            "forbid every token",
        ),
        ({"extra_args": {"bias": 3}}, "extra_args", "bias=3: must be an object"),
        (
            {"extra_args": {"ban": list(range(9))}},
            "extra_args",
            r"CompiledBans returned state of shape \(9,\), not \(4,\)",
        ),
        ({"extra_args": {"ban": [2**31]}}, "extra_args", "ValueError: a value does not fit into int32"),
        ({"extra_args": {"ban": [1.5]}}, "extra_args", "ValueError: cannot convert float64 to int32"),
        ({"extra_args": {"ban": "x"}}, "extra_args", "CompiledBans rejects the request: ValueError"),
        (
            {"extra_args": {"unique": True}, "beam_search": BeamOptions(width=2), "temperature": 0},
            "use_beam_search",
            "cannot be combined with logits processors",
        ),
    ],
)
def test_only_who_uses_it_fails(
    processing: Engine, prompts: list[list[int]], params: dict[str, Any], parameter: str | None, message: str
) -> None:
    expected = run(processing, [asked(0, prompts[0], seed=1)])["0"].token_ids
    processing.add_request(asked(0, prompts[0], seed=1))
    processing.add_request(asked(1, prompts[1], extra_args={"bias": {"5": 1.0}}, seed=1))
    processing.add_request(asked(2, prompts[2], **params))
    processing.add_request(asked(3, prompts[3], extra_args={"unique": True}))
    tokens: dict[str, list[int]] = {"0": [], "1": [], "2": [], "3": []}
    refused = {}
    while processing.has_unfinished_requests():
        for output in processing.step():
            tokens[output.request_id] += output.token_ids
            if output.refusal is not None:
                refused[output.request_id] = output
    assert tokens["0"] == expected
    assert len(tokens["1"]) == len(set(tokens["3"])) == 12
    assert list(refused) == ["2"]
    assert refused["2"].is_fault == (parameter is None)
    assert len(tokens["2"]) == (3 if "ZeroDiv" in message else "thinking_token_budget" in params)
    assert refused["2"].refused_parameter == parameter
    assert re.search(message, refused["2"].refusal or "")
    processing.scheduler.check_integrity()


@pytest.mark.slow
def test_preempted_requests_get_the_tokens_that_they_get_alone(prompts: list[list[int]]) -> None:
    """Processors see the whole output again when its request comes back."""
    engine = make_engine(
        max_model_len=96, block_size=4, num_gpu_blocks_override=26, max_num_batched_tokens=16, max_num_seqs=8,
        logits_processors=[processors.Bias, processors.NoRepeats, processors.CompiledBans],
    )  # fmt: skip
    starts = [prompt[:20] for prompt in prompts if len(prompt) >= 20][:9]
    extras: list[dict[str, Any]] = [{"unique": True}, {"bias": {"5": 6.0, "40": 5.0}, "ban": [7]}, {"ban": [5, 40]}]

    def ask(index: int) -> Request:
        return asked(index, starts[index], extra_args=extras[index % 3], seed=index, max_tokens=40)

    together = run(engine, map(ask, range(9)))
    preempted = engine.scheduler.num_preemptions
    assert preempted > 3
    for index in range(9):
        assert run(engine, [ask(index)])[str(index)].token_ids == together[str(index)].token_ids
    assert engine.scheduler.num_preemptions == preempted
    assert len(set(together["0"].token_ids)) == 40
    engine.close()
