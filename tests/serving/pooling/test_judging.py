"""Models that judge pairs with yes or no: asked in Qwen3-Reranker's words, by transformers as the oracle."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from jaxllm import LLM, PoolingParams
from jaxllm.errors import ConfigError, RequestError
from jaxllm.serving.pooling.judging import JUDGED_TEXTS
from tests.jaxllm.pooling.driving import QUICK

QUERY = "what color is the sky"
DOCUMENTS = ["the sky is blue", "apples are red and green", "once upon a time a dog ran away"]
OPTIONS = {**QUICK, "max_num_batched_tokens": 512, "max_model_len": 400}
JUDGE = {"classifier_from_token": ["no", "yes"]}


def probability(folder: Path, token_ids: list[int]) -> float:
    """Of yes, where yes or no is the next token."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        last = model(torch.tensor([token_ids])).logits[0, -1]
    return float(torch.softmax(last[tokenizer.convert_tokens_to_ids(["no", "yes"])], -1)[1])


def test_scores_are_the_probability_of_yes(judge: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(judge)
    with LLM(str(judge), pooler_config=JUDGE, **OPTIONS) as llm:
        found = llm.score(QUERY, DOCUMENTS, use_tqdm=False)
        (cut,) = llm.score(QUERY, DOCUMENTS[2], pooling_params=PoolingParams(truncate_prompt_tokens=300))
        with pytest.raises(RequestError, match="leaves no room"):
            llm.score(QUERY, DOCUMENTS, pooling_params=PoolingParams(truncate_prompt_tokens=20))
    for document, each in zip(DOCUMENTS, found, strict=True):
        text = JUDGED_TEXTS.before + JUDGED_TEXTS.pair.format(QUERY, document) + JUDGED_TEXTS.after
        token_ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert each.prompt_token_ids == token_ids
        assert each.outputs.score == pytest.approx(probability(judge, token_ids), abs=2e-5)
    assert len({round(each.outputs.score, 6) for each in found}) == len(found)
    whole = found[2].prompt_token_ids
    behind = tokenizer(JUDGED_TEXTS.after, add_special_tokens=False)["input_ids"]
    assert cut.prompt_token_ids == whole[: min(300, len(whole)) - len(behind)] + behind


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "give one or two tokens"),
        (["no", "perhaps"], "'perhaps' is not a token"),
        ([1.5, 2], "give one or two tokens"),
    ],
)
def test_tokens_that_are_not_there(judge: Path, given: list[object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LLM(str(judge), pooler_config={"classifier_from_token": given}, **OPTIONS)


def test_a_classifier_has_no_tokens_to_choose_from(cross_encoder: Path) -> None:
    with pytest.raises(ConfigError, match="only generative models"):
        LLM(str(cross_encoder), pooler_config=JUDGE, **QUICK)
