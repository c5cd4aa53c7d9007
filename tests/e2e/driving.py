"""Running token requests through a real engine, for tests."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from jaxllm.config import EngineConfig
from jaxllm.engine.engine import Engine
from jaxllm.requests.outputs import RankedSequence, TokenLogprobs
from jaxllm.requests.request import Request
from jaxllm.requests.sampling_params import SamplingParams


@dataclass
class Answer:
    """All that an engine said of one request."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    num_cached_tokens: int = 0
    sequences: list[RankedSequence] | None = None


def make_engine(**options: object) -> Engine:
    """An engine on `demo`, quickly compiled: each program when it is first used; any other compilation is an error.

    `enforce_eager=False` compiles the programs of all features for all sizes at the start, as for users: then a
    compilation after warm-up is an error. It takes half as long again. The layers of `demo` are alike: as a scan they
    compile in half the time, also where pages are too small for kernels of the CPU. Other models have what users have.
    """
    defaults: dict[str, object] = {"strict_compilation": True, "optimization_level": 0, "enforce_eager": True}
    if "model" not in options:
        defaults["layer_stack"] = "scan"
    return Engine.from_config(EngineConfig.from_options({**defaults, **options}))


def request(name: object, prompt: Iterable[int], **params: object) -> Request:
    """A request for a prompt of token ids."""
    tokens = np.array(list(prompt), np.int32)
    return Request(request_id=str(name), prompt_token_ids=tokens, params=SamplingParams.from_dict(params))


def run(engine: Engine, requests: Iterable[Request]) -> dict[str, Answer]:
    """Add requests and step until the engine is idle; its invariants must hold then."""
    for each in requests:
        engine.add_request(each)
    answers: dict[str, Answer] = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            answer = answers.setdefault(output.request_id, Answer())
            answer.token_ids += output.token_ids
            answer.logprobs += output.logprobs or []
            answer.prompt_logprobs = output.prompt_logprobs or answer.prompt_logprobs
            answer.finish_reason, answer.stop_reason = output.finish_reason, output.stop_reason
            answer.sequences = output.sequences
            answer.num_cached_tokens = output.num_cached_tokens
    engine.scheduler.check_integrity()
    assert engine.pages.num_held_pages == 0
    return answers
