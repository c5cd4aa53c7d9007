"""One engine computes a prompt with sound and another one goes on: the tokens are those of transformers."""

from pathlib import Path

import numpy as np
from transformers import Qwen2AudioForConditionalGeneration

from tests.e2e.sound.rows import Part, expected, hearing_rows, save_model
from tests.e2e.sound.windows import FRAMES
from tests.e2e.transfer.pairs import FOR_ANOTHER, apart, drive, nothing_left, pair, with_params


def test_sound_goes_along(tmp_path: Path) -> None:
    """Pages of other sound are not taken for those of the same text."""
    save_model(tmp_path)
    reference = Qwen2AudioForConditionalGeneration.from_pretrained(tmp_path).eval()
    text: list[Part] = np.random.default_rng(0).integers(3, 140, 50).tolist()
    first_prompt, second_prompt, other = ([*text[:20], (seed, FRAMES), *text[20:]] for seed in range(3))
    with pair(model=str(tmp_path), media_pool_tokens=48) as (first, second):
        prompts = {"0": first_prompt, "1": second_prompt}
        found = apart(first, second, [hearing_rows(name, parts, max_tokens=8) for name, parts in prompts.items()])
        for name, parts in prompts.items():
            assert found[name].token_ids == expected(reference, parts)
        # 70 tokens each, four full pages; the sound begins in the second one.
        assert second.stats().transfer.tokens == 2 * 64
        told = drive(first, [with_params(hearing_rows("one", first_prompt), FOR_ANOTHER, max_tokens=1)])["told"]["one"]
        asked = with_params(hearing_rows("other", other), told, max_tokens=8)
        answers = drive(second, [asked], beside=first.copy_while_idle)["answers"]
        assert answers["other"].token_ids == expected(reference, other)
        assert second.stats().transfer.gone == 1
        nothing_left(first, second)
