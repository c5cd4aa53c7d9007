"""A long mixed run: every feature at once, no compilation, no leak, and bad requests harm nobody."""

import gc

import jax
import numpy as np
import psutil
import pytest

from jaxllm.engine.engine import Engine
from jaxllm.errors import EngineError, RequestError
from jaxllm.requests.request import Request
from tests.e2e.driving import make_engine, request, run


def mixed_requests(prompts: list[list[int]], count: int, seed: int) -> list[Request]:
    """Requests with all kinds of parameters."""
    rng = np.random.default_rng(seed)
    choices: list[dict[str, object]] = [
        {"temperature": 0},
        {"temperature": 0, "logprobs": 3},
        {"temperature": 1.0},
        {"temperature": 0.7, "top_k": 5},
        {"temperature": 0.7, "top_p": 0.5, "logprobs": 0},
        {"min_p": 0.2, "min_tokens": 4},
        {"logit_bias": {7: 5.0, 9: -100.0}},
        {"allowed_token_ids": [5, 6, 7, 8, 9], "ignore_eos": True},
        {"bad_words_token_ids": [[5, 6], [7]]},
        {"presence_penalty": 1.0, "frequency_penalty": -0.5},
        {"repetition_penalty": 1.3, "seed": 3},
        {"prompt_logprobs": 2},
        {"stop_token_ids": list(range(10, 40))},
    ]
    return [
        request(
            f"{seed}-{i}",
            prompts[int(rng.integers(len(prompts)))],
            max_tokens=int(rng.integers(4, 40)),
            **choices[i % len(choices)],
        )
        for i in range(count)
    ]


def resident() -> int:
    gc.collect()
    return psutil.Process().memory_info().rss


@pytest.mark.slow
def test_300_requests(engine: Engine, prompts: list[list[int]]) -> None:
    for part in range(10, 15):  # until what is taken once is taken
        run(engine, mixed_requests(prompts, 100, seed=part))
    before, compiled = resident(), engine.runner.watch.count
    for part in range(1, 4):
        answers = run(engine, mixed_requests(prompts, 100, seed=part))
        assert len(answers) == 100
        assert all(answer.finish_reason in ("stop", "length") for answer in answers.values())
    assert engine.runner.watch.count == compiled == 0
    assert resident() - before < 30e6


def test_features_do_what_they_say(engine: Engine, prompts: list[list[int]]) -> None:
    answers = run(engine, mixed_requests(prompts, 130, seed=7))
    for index in range(130):
        answer = answers[f"7-{index}"]
        match index % 13:
            case 6:
                assert 9 not in answer.token_ids
            case 7:
                assert set(answer.token_ids) <= {5, 6, 7, 8, 9}
            case 8:
                assert 7 not in answer.token_ids
                assert (5, 6) not in zip(answer.token_ids, answer.token_ids[1:], strict=False)
            case 12:
                assert not set(range(10, 40)) & set(answer.token_ids[:-1])


def test_compilation_after_warm_up_is_an_error(engine: Engine) -> None:
    watch = engine.runner.watch
    with pytest.raises(EngineError, match="compilation after warm-up for 3 tokens"), watch.watching("3 tokens"):
        jax.jit(lambda x: x * 3 + 41)(np.float32(2))
    assert engine.runner.watch.count == 1
    engine.runner.watch.count = 0


def test_eager_compiles_a_shape_when_it_is_first_met(engine: Engine, prompts: list[list[int]]) -> None:
    eager = make_engine(max_num_seqs=4)
    try:
        for prompt in (prompts[3], prompts[5]):
            answers = [
                run(each, [request("one", prompt, temperature=0, max_tokens=4, prompt_logprobs=1, min_tokens=2)])
                for each in (eager, engine)
            ]
            assert answers[0]["one"].token_ids == answers[1]["one"].token_ids
        assert eager.runner.watch.count == 0
    finally:
        eager.close()


@pytest.mark.parametrize(
    ("prompt", "params", "message"),
    [
        ([], {}, "empty"),
        ([1] * 2048, {}, "2048 tokens.*max_model_len=2048"),
        ([1536], {}, "token 0 is 1536"),
        ([-1], {}, "token 0 is -1"),
        ([1], {"logit_bias": {5000: 1.0}}, "logit_bias: token ID 5000"),
        ([1], {"allowed_token_ids": [1536]}, "allowed_token_ids: token ID 1536"),
        ([1], {"stop_token_ids": [99999]}, "stop_token_ids: token ID 99999"),
        ([1], {"logprobs": 21}, "logprobs=21: must be at most 20"),
        ([1], {"prompt_logprobs": 21}, "prompt_logprobs=21"),
    ],
)
def test_bad_request_harms_nobody(
    engine: Engine, prompts: list[list[int]], prompt: list[int], params: dict[str, object], message: str
) -> None:
    good = request("good", prompts[3], temperature=0, max_tokens=6)
    (expected,) = run(engine, [good]).values()
    again = request("again", prompts[3], temperature=0, max_tokens=6)
    engine.add_request(again)
    engine.step()
    with pytest.raises(RequestError, match=message):
        engine.add_request(request("bad", prompt, **params))
    (answer,) = run(engine, []).values()
    assert answer.token_ids == expected.token_ids[1:]


def test_abort_waiting_and_running(engine: Engine, prompts: list[list[int]]) -> None:
    for index in range(70):
        engine.add_request(request(index, prompts[1], max_tokens=30, ignore_eos=True))
    engine.step()
    engine.abort_request(["0", "69", "unknown"])
    answers = run(engine, [])
    assert answers["0"].finish_reason == answers["69"].finish_reason == "abort"
    assert sum(answer.finish_reason == "length" for answer in answers.values()) == 68
