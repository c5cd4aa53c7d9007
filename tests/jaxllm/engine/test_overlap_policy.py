"""Whether a step waits for the one before it: with several owners, where that one computes prompts and takes long."""

from dataclasses import dataclass
from typing import Any

from jaxllm.engine.overlap_policy import LONG_STEP_SECONDS, OWNERS_SECONDS, OverlapPolicy
from jaxllm.requests.owners import Owner

ADA, BEN = Owner("ada"), Owner("ben")


@dataclass
class Rows:
    """The two numbers of a plan that are read."""

    num_decodes: int
    num_rows: int


PROMPTS: Any = Rows(2, 3)
DECODES: Any = Rows(3, 3)


def test_only_with_several_owners_and_only_long_steps_with_prompts() -> None:
    now = [0.0]
    policy = OverlapPolicy(lambda: now[0])
    policy.on_step(512, 2 * LONG_STEP_SECONDS)
    policy.on_step(64, LONG_STEP_SECONDS / 2)
    for _ in range(2):
        policy.on_request(ADA)
    assert not policy.must_wait(PROMPTS, 512), "one owner"
    policy.on_request(BEN)
    assert policy.must_wait(PROMPTS, 512)
    assert not policy.must_wait(PROMPTS, 64)
    assert not policy.must_wait(PROMPTS, 128), "nobody knows how long it takes"
    assert not policy.must_wait(DECODES, 512)
    now[0] += OWNERS_SECONDS
    policy.on_request(BEN)
    assert not policy.must_wait(PROMPTS, 512), "the other has not been here for long"
