"""Rerankers that see, which answer yes or no: their scores are those of transformers, for texts and images."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from jaxllm import LLM
from jaxllm.serving.pooling.judging import JUDGED_IMAGES
from tests.e2e.images.pictures import data_url, picture
from tests.e2e.images.qwen import FAMILIES
from tests.e2e.images.qwen_reference import MARKER, Reference


def _with_answers(demo: Path, folder: Path) -> Path:
    """A copy of the demo's tokenizer with the tokens no and yes, in place of two that no others are made of."""
    shutil.copytree(demo, folder, dirs_exist_ok=True)
    file = folder / "tokenizer.json"
    values = json.loads(file.read_text())
    vocabulary, merges = values["model"]["vocab"], values["model"]["merges"]
    used = {part for merge in merges for part in merge}
    for pair in (("n", "o"), ("y", "es")):
        place = next(place for place, merge in enumerate(merges) if merge[0] + merge[1] not in used)
        vocabulary["".join(pair)] = vocabulary.pop("".join(merges[place]))
        used.update(["".join(pair)])
        merges[place] = list(pair)
        assert all(part in vocabulary for part in pair)
    file.write_text(json.dumps(values))
    return folder


def test_scores_are_the_probability_of_yes(tmp_path: Path, demo_folder: Path) -> None:
    reference = Reference(FAMILIES["qwen3_vl"], tmp_path / "model", _with_answers(demo_folder, tmp_path / "tokenizer"))
    images = [picture(1), picture(2, 30, 40)]
    first, second = ({"type": "image_pil", "image_pil": image} for image in images)
    url = {"type": "image_url", "image_url": {"url": data_url(images[0])}}
    text = {"type": "text", "text": " and <|image_pad|> as text"}
    documents: list[Any] = ["a cat", {"content": [first]}, {"content": [url, second]}, {"content": [second, text]}]
    options: dict[str, Any] = {"max_model_len": 512, "max_num_seqs": 4, "optimization_level": 0, "enforce_eager": True}
    answers = {"classifier_from_token": ["no", "yes"], "architectures": ["Qwen3VLForSequenceClassification"]}
    overrides: dict[str, Any] = {"hf_overrides": {**answers, "is_original_qwen3_reranker": True}}
    with LLM(str(tmp_path / "model"), runner="pooling", **options, **overrides, max_image_patches=144) as llm:
        found = llm.score("cats", documents, use_tqdm=False)
        (seen,) = llm.score({"content": [first]}, "a cat", use_tqdm=False)
    no, yes = (reference.tokenizer.convert_tokens_to_ids(name) for name in ("no", "yes"))

    def probability(query: str, document: str, shown: list[Any]) -> float:
        asked = JUDGED_IMAGES.before + JUDGED_IMAGES.pair.format(query, document) + JUDGED_IMAGES.after
        logits = reference.logits(asked, shown)
        return float(1 / (1 + math.exp(logits[no] - logits[yes])))

    wanted = [
        probability("cats", "a cat", []),
        probability("cats", MARKER, images[:1]),
        probability("cats", MARKER + MARKER, images),
    ]
    assert [each.outputs.score for each in found[:3]] == pytest.approx(wanted, abs=1e-4)
    # What looks like a marker in a text is text.
    assert found[3].prompt_token_ids.count(reference.image_token) == reference.num_rows(images[1])
    assert seen.outputs.score == pytest.approx(probability(MARKER, "a cat", images[:1]), abs=1e-4)
    assert len({round(each.outputs.score, 5) for each in found}) == len(found)
