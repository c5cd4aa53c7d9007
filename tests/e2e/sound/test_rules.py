"""The rules of transcriptions in an engine, with what transformers' processors allow as the oracle."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GenerationConfig
from transformers.generation.logits_process import (
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
    WhisperTimeStampLogitsProcessor,
)

from jaxllm import LLM, SamplingParams
from jaxllm.errors import RequestError
from tests.e2e.sound.hearing import reference_in, save_small_model
from tests.e2e.sound.windows import Features, window

END, NONE, FIRST = 60, 99, 100
"""The end of texts, the token that says there are no timestamps, and the first timestamp, of 160 tokens."""
SUPPRESSED, SUPPRESSED_FIRST = [3, 5, 70, 71], [9, END]
RULES = {
    "suppressed": SUPPRESSED,
    "suppressed_first": SUPPRESSED_FIRST,
    "timestamps": {"first": FIRST, "end": END, "none": NONE, "most_initial": 10},
}
PROMPT = [1, 5, 8]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("rules")
    save_small_model(found)
    return found


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    made = LLM(
        str(folder), skip_tokenizer_init=True, max_model_len=64, max_num_seqs=4, max_num_batched_tokens=8,
        optimization_level=0, enforce_eager=True,
    )  # fmt: skip
    yield made
    made.close()


def expected(model: Any, features: Features, count: int, *, timestamps: bool) -> list[int]:
    """What transformers writes with its processors, by the likeliest of each step."""
    config = GenerationConfig(eos_token_id=END, bos_token_id=END)
    config.no_timestamps_token_id, config.max_initial_timestamp_index = NONE, 10
    processors = [
        SuppressTokensAtBeginLogitsProcessor(SUPPRESSED_FIRST, len(PROMPT)),
        SuppressTokensLogitsProcessor(SUPPRESSED),
        *([WhisperTimeStampLogitsProcessor(config, len(PROMPT))] if timestamps else []),
    ]
    ids = torch.tensor([PROMPT])
    with torch.no_grad():
        encoded = model.model.encoder(torch.from_numpy(features)[None])
        for _ in range(count):
            scores = model(encoder_outputs=encoded, decoder_input_ids=ids).logits[:, -1]
            for each in processors:
                scores = each(ids, scores)
            ids = torch.cat([ids, scores.argmax(dim=-1, keepdim=True)], dim=1)
    return ids[0, len(PROMPT) :].tolist()


def params(**others: Any) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, **others)


def test_texts_follow_the_rules(llm: LLM, folder: Path) -> None:
    """With timestamps, without them, and without rules, all in one batch."""
    model = reference_in(folder)
    plain = {key: value for key, value in RULES.items() if key != "timestamps"}
    asked = [{"transcription": RULES}, {"transcription": plain}, None]
    prompts = [
        {"prompt_token_ids": PROMPT, "multi_modal_data": {"audio": window(seed)}} for seed in range(4) for _ in asked
    ]
    answers = llm.generate(prompts, [params(extra_args=each) for _ in range(4) for each in asked])
    found = [answer.outputs[0].token_ids for answer in answers]
    for seed in range(4):
        timed, untimed, free = found[3 * seed : 3 * seed + 3]
        assert timed == expected(model, window(seed), 24, timestamps=True)
        assert untimed == expected(model, window(seed), 24, timestamps=False)
        assert timed[0] >= FIRST
        assert timed != free
    assert len({tuple(each) for each in found}) > 6


def test_wrong_rules_are_an_error(llm: LLM) -> None:
    prompt = {"prompt_token_ids": PROMPT, "multi_modal_data": {"audio": window(0)}}
    with pytest.raises(RequestError, match="transcription"):
        llm.generate([prompt], params(extra_args={"transcription": {"supressed": []}}))
