"""Which engine gets a request."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxllm.engine.stats import StepStats
from jaxllm.serving.affinity import guesses
from jaxllm.serving.affinity.guesses import BLOCK, MOST_BLOCKS, PrefixIndex
from jaxllm.serving.affinity.prefixes import Prompt
from jaxllm.serving.ipc.client.router import Router

PROMPT = Prompt(token_ids=np.arange(10, dtype=np.int32))


def tokens(seed: int, length: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 1000, length).astype(np.int32)


def test_idle_engines_take_turns() -> None:
    router = Router("load")
    chosen = []
    for _ in range(6):
        chosen.append(router.choose([0, 1, 2], PROMPT))
        for engine in range(3):
            router.observe(engine, StepStats())
    assert chosen == [0, 1, 2, 0, 1, 2]


def test_a_waiting_request_counts_four_times() -> None:
    router = Router("load")
    router.observe(0, StepStats(num_running=4))
    router.observe(1, StepStats(num_running=1, num_waiting=1))
    assert router.choose([0, 1], PROMPT) == 0
    # What was sent counts as waiting until the engine has said something.
    assert router.choose([0, 1], PROMPT) == 1
    router.observe(0, StepStats(num_running=5))
    assert router.choose([0, 1], PROMPT) == 0


def test_only_engines_that_live_are_chosen() -> None:
    router = Router("load")
    router.observe(1, StepStats(num_running=100))
    assert {router.choose([1, 2], PROMPT, sequences=8) for _ in range(3)} == {2}
    router.forget(1)
    assert router.choose([1, 2], PROMPT) == 1


@given(st.lists(st.integers(1, 16), min_size=1, max_size=60), st.integers(2, 5))
def test_without_news_all_get_equally_much(sizes: list[int], count: int) -> None:
    router = Router("load")
    sent: Counter[int] = Counter(dict.fromkeys(range(count), 0))
    for size in sizes:
        sent[router.choose(range(count), PROMPT, sequences=size)] += size
    assert max(sent.values()) - min(sent.values()) <= max(sizes)


def test_a_conversation_stays_where_it_began() -> None:
    router = Router("prefix")
    turns = [tokens(seed, 5 * BLOCK) for seed in range(4)]
    homes = [router.choose([0, 1, 2, 3], Prompt(token_ids=turn)) for turn in turns]
    assert sorted(homes) == [0, 1, 2, 3]
    for engine in range(4):
        router.observe(engine, StepStats())
    for seed, turn in enumerate(turns):
        assert router.choose([0, 1, 2, 3], Prompt(token_ids=np.concatenate([turn, tokens(9, 100)]))) == homes[seed]


def test_a_prefix_is_left_where_one_would_wait() -> None:
    router = Router("prefix")
    home = router.choose([0, 1], Prompt(token_ids=tokens(1, 4 * BLOCK)))
    router.observe(home, StepStats(num_running=4, num_waiting=1))
    assert router.choose([0, 1], Prompt(token_ids=tokens(1, 4 * BLOCK))) == 1 - home
    # Now both have it.
    router.observe(1 - home, StepStats(num_running=2))
    assert router.choose([0, 1], Prompt(token_ids=tokens(1, 4 * BLOCK))) == 1 - home


def test_salts_and_lost_caches_share_nothing() -> None:
    index = PrefixIndex()
    prompt = tokens(1, 3 * BLOCK + 7)
    index.add(index.blocks(prompt, "ada"), 0)
    assert len(index.blocks(prompt, "ada")) == 3
    assert index.shared(index.blocks(prompt, "ada"), [0, 1]) == {0: 3}
    assert index.shared(index.blocks(prompt[: 2 * BLOCK], "ada"), [0]) == {0: 2}
    assert index.shared(index.blocks(prompt[1:], "ada"), [0]) == {}
    assert index.shared(index.blocks(prompt, "ben"), [0]) == {}
    index.forget(0)
    assert index.shared(index.blocks(prompt, "ada"), [0]) == {}


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guesses, "MOST_KNOWN", 2 * MOST_BLOCKS)
    index = PrefixIndex()
    assert len(index.blocks(tokens(0, 10**6), None)) == MOST_BLOCKS
    for seed in range(5):
        index.add(index.blocks(tokens(seed, 10**5), None), 0)
    assert len(index._seen) == 2 * MOST_BLOCKS
    assert index.shared(index.blocks(tokens(0, 10**5), None), [0]) == {}
    assert index.shared(index.blocks(tokens(4, 10**5), None), [0]) == {0: MOST_BLOCKS}
