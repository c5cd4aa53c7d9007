"""An engine on mapped weights answers like any other, sleeps, and gets other weights; the file stays as it is."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from jaxllm import LLM, SamplingParams
from jaxllm.engine.engine import Engine
from jaxllm.executor.weights import cached, load
from jaxllm.models.checkpoint.mapped_file import lies_in_file, mapped_ranges
from tests.e2e.text.conftest import SMALL

OPTIONS: dict[str, Any] = {**SMALL, "strict_compilation": True, "enable_sleep_mode": True}
GREEDY = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True, logprobs=3)
PROMPTS = ["Once upon a time there was a little dog who liked to eat apples and to sing all day long.", "1 + 2 ="]
Answers = list[tuple[list[int], list[list[tuple[int, float]]]]]


def answers_of(llm: LLM) -> Answers:
    """Tokens, and the log-probabilities of alternatives."""
    outputs = [each.outputs[0] for each in llm.generate(PROMPTS, GREEDY, use_tqdm=False)]
    return [
        (list(one.token_ids), [[(token, each.logprob) for token, each in step.items()] for step in one.logprobs or ()])
        for one in outputs
    ]


def shares_mapped(llm: LLM) -> float:
    """The share of the weights' bytes that lie in files."""
    engine, ranges = llm.llm_engine.engine, mapped_ranges()
    assert isinstance(engine, Engine)
    leaves = engine.runner.parameters
    return sum(leaf.nbytes for leaf in leaves if lies_in_file(leaf, ranges)) / sum(leaf.nbytes for leaf in leaves)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The cache of these weights alone: programs come from the one of all tests."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cached, "cache_home", lambda kind: folder / kind)
        yield folder / "weights"


@pytest.fixture(scope="module")
def wanted() -> Answers:
    """Of an ordinary engine."""
    with LLM("demo", **OPTIONS) as llm:
        return answers_of(llm)


@pytest.fixture(scope="module")
def llm(home: Path, wanted: Answers) -> Iterator[LLM]:
    """An engine on weights that another one has written."""
    del wanted  # Made first: it reads the checkpoint.
    with LLM("demo", weight_cache_size=1, **OPTIONS) as first:
        assert shares_mapped(first) > 0.99
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load, "load_leaves", _refuse)
        with LLM("demo", weight_cache_size=1, **OPTIONS) as made:
            yield made


def _refuse(*given: Any) -> None:
    raise AssertionError("the checkpoint is read and packed again")


@pytest.fixture(autouse=True)
def unchanged(llm: LLM, home: Path) -> Iterator[None]:
    (file,) = home.glob("*/*.safetensors")
    before = hashlib.sha256(file.read_bytes()).digest()
    yield
    assert hashlib.sha256(file.read_bytes()).digest() == before


def test_answers_are_those_of_an_ordinary_engine(llm: LLM, wanted: Answers) -> None:
    assert shares_mapped(llm) > 0.99
    assert answers_of(llm) == wanted


@pytest.mark.parametrize("level", [1, 2])
def test_mapped_weights_are_neither_copied_nor_read_for_a_sleep(
    llm: LLM, level: int, wanted: Answers, home: Path
) -> None:
    engine = llm.llm_engine.engine
    assert isinstance(engine, Engine)
    places = [leaf.unsafe_buffer_pointer() for leaf in engine.runner.parameters]
    llm.sleep(level)
    assert (str(home) in Path("/proc/self/maps").read_text()) == (level == 1)
    llm.wake_up()
    assert shares_mapped(llm) > 0.99
    if level == 1:
        assert [leaf.unsafe_buffer_pointer() for leaf in engine.runner.parameters] == places
    assert answers_of(llm) == wanted


def test_weights_that_are_replaced_are_the_engines_own(llm: LLM, demo_folder: Path, wanted: Answers) -> None:
    old = load_file(demo_folder / "model.safetensors")
    # Whole parameters, a part of one that has several tensors, and one layer's part of what all layers have.
    some = [name for name in old if "layers.0" in name or "embed" in name]
    llm.update_weights({name: (old[name] * np.float32(0.5)).astype(old[name].dtype) for name in some})
    assert answers_of(llm) != wanted
    assert 0 <= shares_mapped(llm) < 0.99
    llm.update_weights({name: old[name] for name in some})
    assert answers_of(llm) == wanted
    llm.sleep(1)
    llm.wake_up()
    assert answers_of(llm) == wanted
    llm.reload_weights()
    assert answers_of(llm) == wanted
