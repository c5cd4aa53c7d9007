"""Requests with every parameter drawn at random, wrong ones among them, alongside streams that must not notice."""

from typing import Any

import numpy as np

from jaxllm.engine.engine import Engine
from jaxllm.errors import RequestError
from jaxllm.requests.beam_options import BeamOptions, EarlyStopping
from tests.e2e.driving import request, run
from tests.thinned import EVERY_CASE

STREAMS, DRAWN = 20, 400 if EVERY_CASE else 200
LENGTH = DRAWN
"""Tokens of a stream: some are under way while the last are drawn."""

EARLY: list[EarlyStopping] = [True, False, "never"]
GRAMMARS: list[dict[str, Any]] = [
    {"regex": "[a-z ]{3,40}"},
    {"choice": ["yes", "no", "a rather long answer"]},
    {"json": {"type": "object", "properties": {"a": {"const": "a constant"}}, "required": ["a"]}},
    {"json": {"type": "array", "items": {"type": "integer"}, "maxItems": 3}},
    {"json_object": True},
    {"grammar": 'start: "a" /[0-9]{2}/ "b"'},
    {"regex": "("},
]


def drawn(rng: np.random.Generator, letters: list[int]) -> dict[str, Any]:
    """Parameters of a request; some cannot be served. `letters` are tokens of nothing but the letter a."""

    def some(chance: float) -> bool:
        return bool(rng.random() < chance)

    def ids(most: int) -> list[int]:
        found: list[int] = rng.integers(0, 1536, int(rng.integers(1, most))).tolist()
        return found

    params: dict[str, Any] = {
        "max_tokens": int(rng.integers(1, 24)),
        "temperature": float(rng.choice([0, 0, 0.3, 1.7])),
    }
    if some(0.1):
        return {**params, "temperature": 0, "beam_search": BeamOptions(
            width=int(rng.integers(1, 5)), length_penalty=float(rng.choice([-10, -1, 0, 1, 10])),
            early_stopping=EARLY[int(rng.integers(3))],
        )}  # fmt: skip
    optional: dict[str, Any] = {
        "presence_penalty": float(rng.choice([-2, 0.5, 2])),
        "frequency_penalty": float(rng.choice([-2, 0.5, 2])),
        "repetition_penalty": float(rng.choice([1e-30, 0.5, 1.1, 1e30])),
        "top_p": float(rng.choice([1e-9, 0.5, 1])),
        "top_k": int(rng.choice([1, 7, 10**6])),
        "min_p": float(rng.choice([0.1, 1])),
        "seed": int(rng.choice([-(2**63), 0, 7, 2**63 - 1])),
        "stop_token_ids": ids(30),
        "ignore_eos": True,
        "min_tokens": int(rng.integers(0, params["max_tokens"] + 1)),
        "logprobs": int(rng.choice([0, 1, 20])),
        "prompt_logprobs": int(rng.choice([0, 20])),
        "logprob_token_ids": ids(100),
        "logit_bias": dict.fromkeys(ids(20), float(rng.choice([-100, 3, 100]))),
        "allowed_token_ids": ids(5),
        "bad_words_token_ids": [ids(3) for _ in range(3)],
        "thinking_token_budget": int(rng.integers(0, 9)),
        "reasoning_end_token_ids": ids(4),
        "structured_outputs": GRAMMARS[int(rng.integers(len(GRAMMARS)))],
    }
    chances = {"structured_outputs": 0.3, "allowed_token_ids": 0.1, "ignore_eos": 0.5}
    if some(0.05):
        # It ends as soon as what must follow is forbidden.
        return params | {"structured_outputs": {"regex": "aaa[0-9]"}, "allowed_token_ids": letters}
    return params | {name: value for name, value in optional.items() if some(chances.get(name, 0.15))}


def test_streams_do_not_notice(engine: Engine, prompts: list[list[int]], tokenizer: Any) -> None:
    letters = tokenizer("a", add_special_tokens=False)["input_ids"]
    streams = [
        request(f"s{i}", prompts[i][:60], temperature=0, max_tokens=LENGTH, ignore_eos=True) for i in range(STREAMS)
    ]
    (expected, *_) = [run(engine, streams)]
    rng, found, ends = np.random.default_rng(1), dict[str, list[int]](), dict[str, str]()
    left, alive = DRAWN, set[str]()
    for i in range(STREAMS):
        engine.add_request(request(f"s{i}", prompts[i][:60], temperature=0, max_tokens=LENGTH, ignore_eos=True))
    while engine.has_unfinished_requests() or left:
        # Now many at once, now one after the other.
        while left and len(alive) < (1 + left % 24):
            left -= 1
            name = str(left)
            prompt = prompts[int(rng.integers(len(prompts)))][:120]
            try:
                engine.add_request(request(name, prompt, **drawn(rng, letters)))
                alive.add(name)
            except RequestError as error:
                ends[name] = str(error)
        if alive and rng.random() < 0.05:
            engine.abort_request(sorted(alive)[:1])
        for output in engine.step():
            if output.request_id.startswith("s"):
                found.setdefault(output.request_id, []).extend(output.token_ids)
            elif output.finish_reason is not None:
                assert not output.is_fault, output
                alive.discard(output.request_id)
                ends[output.request_id] = output.refusal or output.finish_reason
    engine.scheduler.check_integrity()
    assert found == {name: answer.token_ids for name, answer in expected.items()}
    assert len(ends) == DRAWN
    kinds = {end for end in ends.values() if end in ("stop", "length", "abort")}
    assert kinds == {"stop", "length", "abort"}
    assert any(end.startswith("structured_outputs") for end in ends.values())
