"""Sound with options that change what a step is."""

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.driving import make_engine, run
from tests.e2e.sound.hearing import expected, reference_in, save_small_model
from tests.e2e.sound.windows import hearing, window


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("hearing")
    save_small_model(found)
    return found


@pytest.mark.parametrize(
    "options",
    [
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}},
        {"attention_backend": "xla", "layer_stack": "scan", "async_scheduling": False},
    ],
    ids=("drafts", "scan"),
)
def test_tokens(folder: Path, options: dict[str, Any]) -> None:
    engine = make_engine(model=str(folder), max_model_len=80, max_num_seqs=3, max_num_batched_tokens=16, **options)
    reference = reference_in(folder)
    prompts = ([1, 5], [1, *range(20, 40)], [1, 5])
    found = run(engine, [hearing(i, window(i % 2), prompt, max_tokens=12) for i, prompt in enumerate(prompts)])
    engine.close()
    for i, prompt in enumerate(prompts):
        assert found[str(i)].token_ids == expected(reference, window(i % 2), prompt, 12), i


def test_keys_of_few_bits(folder: Path) -> None:
    """Rounded keys change tokens at some place, but not what is said of the same window twice."""
    engine = make_engine(
        model=str(folder), max_model_len=80, max_num_seqs=2, max_num_batched_tokens=8, kv_cache_dtype="int8"
    )
    wanted = expected(reference_in(folder), window(0), [1, 5], 2)
    found = run(engine, [hearing(name, window(0), [1, 5], max_tokens=12) for name in ("a", "b")])
    engine.close()
    assert found["a"].token_ids == found["b"].token_ids
    assert found["a"].token_ids[:2] == wanted
