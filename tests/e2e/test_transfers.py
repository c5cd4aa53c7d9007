"""How often a step crosses between host and device, counted by the runtime itself."""

import jax
import pytest

from jaxllm.engine.engine import Engine
from tests.e2e.driving import request, run


class Transfers:
    """Counts what the runtime logs of transfers to the device; those back are not logged on CPU."""

    def __init__(self, capfd: pytest.CaptureFixture[str]) -> None:
        self._capfd = capfd

    def of_step(self, engine: Engine) -> int:
        """Arrays that one call of `Engine.step` sends to the device."""
        self._capfd.readouterr()
        with jax.transfer_guard("log"):
            engine.step()
        return self._capfd.readouterr().err.count("host-to-device transfer")


@pytest.fixture
def transfers(capfd: pytest.CaptureFixture[str]) -> Transfers:
    return Transfers(capfd)


def test_a_decode_step_sends_one_array_and_fetches_one(
    engine: Engine, prompts: list[list[int]], transfers: Transfers
) -> None:
    for index in range(20):
        engine.add_request(request(index, prompts[3][: 1 + index], max_tokens=30, ignore_eos=True))
    # Two steps begin: the second decodes. Two calls write the pages of 20 requests, two arrays each.
    assert transfers.of_step(engine) == 2 + 2 * 2
    assert [transfers.of_step(engine) for _ in range(20)] == [1] * 20  # all of them cross into a new page meanwhile
    assert [len(jax.tree.leaves(step.wanted)) for _, step in engine._under_way] == [1]
    run(engine, [])


def test_what_special_requests_send_beside(engine: Engine, prompts: list[list[int]], transfers: Transfers) -> None:
    penalised = {"presence_penalty": 1.0, "max_tokens": 8, "ignore_eos": True}
    engine.add_request(request("penalised", prompts[3], **penalised))
    engine.add_request(request("other", prompts[3], max_tokens=8, ignore_eos=True))
    assert transfers.of_step(engine) == 2 + 2 + 4, "the slot, and three rows as long as the vocabulary"
    assert transfers.of_step(engine) == 1
    engine.add_request(request("logprobs", prompts[3], max_tokens=8, ignore_eos=True, logprobs=2, min_tokens=3))
    assert transfers.of_step(engine) == 1 + 2 + 4
    assert [transfers.of_step(engine) for _ in range(4)] == [1, 1, 4, 1], "end tokens are allowed again"
    assert [len(jax.tree.leaves(step.wanted)) for _, step in engine._under_way] == [5]
    run(engine, [])
