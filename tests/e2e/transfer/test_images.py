"""One engine computes a prompt with images and another one goes on: the tokens are those of transformers."""

from pathlib import Path

import numpy as np
import pytest
from transformers import Idefics3ForConditionalGeneration

from tests.e2e.images.prompts import Parts, pixels, seeing
from tests.e2e.images.seeing import expected, save_small_model
from tests.e2e.transfer.pairs import FOR_ANOTHER, apart, drive, nothing_left, pair, with_params


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("seeing")
    save_small_model(found)
    return found


def test_images_go_along(folder: Path) -> None:
    """Images are part of digests, so that pages of another image are not taken for those of the same text."""
    reference = Idefics3ForConditionalGeneration.from_pretrained(folder).eval()
    text = np.random.default_rng(0).integers(3, 290, 60).tolist()
    drawn: list[Parts] = [[*text[:20], pixels(seed, crops=2), *text[20:]] for seed in range(2)]
    with pair(model=str(folder), media_pool_tokens=48) as (first, second):
        found = apart(first, second, [seeing(seed, prompt, max_tokens=8) for seed, prompt in enumerate(drawn)])
        for seed, prompt in enumerate(drawn):
            assert found[str(seed)].token_ids == expected(reference, prompt, 8)
        # Both prompts have 68 tokens, four full pages each; the image begins in the second one.
        assert second.stats().transfer.tokens == 2 * 64
        nothing_left(first, second)

        # What names the pages of one image does not help a prompt with another one.
        one, other = (
            seeing(name, [*text[:20], pixels(seed), *text[20:]], max_tokens=8)
            for name, seed in (("one", 2), ("other", 3))
        )
        told = drive(first, [with_params(one, FOR_ANOTHER, max_tokens=1)])["told"]["one"]
        answers = drive(second, [with_params(other, told)], beside=first.copy_while_idle)["answers"]
        changed: Parts = [*text[:20], pixels(3), *text[20:]]
        assert answers["other"].token_ids == expected(reference, changed, 8)
        assert second.stats().transfer.gone == 1
        nothing_left(first, second)
