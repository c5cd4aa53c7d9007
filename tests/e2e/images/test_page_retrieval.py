"""ColQwen2 and ColPali: vectors of pages and questions, and their scores, as transformers' processors and models."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

from jaxllm import LLM, PoolingParams
from tests.e2e.images.pictures import picture
from tests.e2e.images.qwen import FAMILIES, ROPE, TEXT
from tests.e2e.images.qwen_prompts import MERGE, PATCH

QUESTIONS = ["What is this?", "How many cats?"]
OPTIONS: dict[str, Any] = {"max_model_len": 256, "max_num_seqs": 4, "optimization_level": 0, "enforce_eager": True}


def _tokenizer(demo: Path, *names: str) -> Any:
    tokenizer = transformers.AutoTokenizer.from_pretrained(demo)
    tokenizer.add_special_tokens({"additional_special_tokens": list(names)})
    return tokenizer


def _random(model: Any) -> Any:
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.15 + float("norm" in name and name.endswith("weight")))
    return model.eval()


def _colqwen2(folder: Path, demo: Path) -> tuple[Any, Any]:
    names = ("<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
    tokenizer = _tokenizer(demo, *names, "<|endoftext|>")
    tokenizer.pad_token = "<|endoftext|>"
    size = {"shortest_edge": (PATCH * MERGE) ** 2, "longest_edge": 48**2}
    images = Qwen2VLImageProcessorPil(patch_size=PATCH, merge_size=MERGE, size=size)
    processor = transformers.ColQwen2Processor(images, tokenizer)
    ids = [tokenizer.convert_tokens_to_ids(name) for name in names[2:]]
    family = FAMILIES["qwen2_vl"]
    vlm = transformers.Qwen2VLConfig(
        text_config={**TEXT, "vocab_size": len(tokenizer), "rope_parameters": {**ROPE, **family.rope}},
        vision_config=family.vision, vision_start_token_id=ids[0], vision_end_token_id=ids[1], image_token_id=ids[2],
        video_token_id=ids[3],
    )  # fmt: skip
    config = transformers.ColQwen2Config(vlm_config=vlm.to_dict(), embedding_dim=24)
    return processor, _random(transformers.ColQwen2ForRetrieval(config))


def _colpali(folder: Path, demo: Path) -> tuple[Any, Any]:
    tokenizer = _tokenizer(demo, "<image>", "<pad>")
    tokenizer.pad_token, tokenizer.image_token = "<pad>", "<image>"
    images = SiglipImageProcessorPil(size={"height": 32, "width": 32})
    images.image_seq_length = 16
    tokenizer.image_token_id = tokenizer.convert_tokens_to_ids("<image>")
    processor = transformers.ColPaliProcessor(images, tokenizer)
    text = {
        "model_type": "gemma", "vocab_size": len(tokenizer), "hidden_size": 48, "intermediate_size": 64,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 12,
    }  # fmt: skip
    vision = {
        "model_type": "siglip_vision_model", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 2, "image_size": 32, "patch_size": 8, "projection_dim": 48, "vision_use_head": False,
    }  # fmt: skip
    token_id = tokenizer.convert_tokens_to_ids("<image>")
    vlm = transformers.PaliGemmaConfig(
        text_config=text, vision_config=vision, projection_dim=48, image_token_index=token_id
    )
    config = transformers.ColPaliConfig(vlm_config=vlm.to_dict(), embedding_dim=24)
    return processor, _random(transformers.ColPaliForRetrieval(config))


def _vectors(model: Any, inputs: Any) -> torch.Tensor:
    given = {name: inputs[name] for name in ("input_ids", "attention_mask", "pixel_values") if name in inputs}
    if "image_grid_thw" in inputs:
        # transformers 5 leaves out what the model was trained with: positions in a grid.
        ids, grid = inputs["input_ids"], inputs["image_grid_thw"]
        kinds = (ids == model.config.vlm_config.image_token_id).int()
        positions, _ = model.vlm.get_rope_index(ids, image_grid_thw=grid, mm_token_type_ids=kinds)
        given |= {"image_grid_thw": grid, "position_ids": positions}
    elif "token_type_ids" in inputs and "pixel_values" in inputs:
        given["token_type_ids"] = inputs["token_type_ids"]
    with torch.no_grad():
        found: torch.Tensor = model(**given).embeddings[0]
    return found


@pytest.mark.parametrize("make", [_colqwen2, _colpali])
def test_scores_of_pages(tmp_path: Path, demo_folder: Path, make: Any) -> None:
    processor, model = make(tmp_path, demo_folder)
    processor.save_pretrained(tmp_path)
    model.save_pretrained(tmp_path)
    pages = [picture(1), picture(2, 30, 40)]
    seen = [processor.process_images([page], return_tensors="pt") for page in pages]
    asked = [processor.process_queries([question], return_tensors="pt") for question in QUESTIONS]
    wanted = [_vectors(model, each) for each in seen]
    queries = [_vectors(model, each) for each in asked]
    expected = processor.score_retrieval(queries, wanted).numpy()
    documents: list[Any] = [{"content": [{"type": "image_pil", "image_pil": page}]} for page in pages]
    with LLM(str(tmp_path), **OPTIONS, dtype="float32") as llm:
        found = [llm.score(question, documents, use_tqdm=False) for question in QUESTIONS]
        for each, vectors in zip(asked, queries, strict=True):
            ids = each["input_ids"][0].tolist()
            (output,) = llm.encode([ids], PoolingParams(), pooling_task="token_embed", use_tqdm=False)
            np.testing.assert_allclose(output.outputs.data, vectors.numpy(), atol=1e-4)
    lengths = [len(each["input_ids"][0]) for each in (asked[0], *seen)]
    assert [len(each.prompt_token_ids) for each in found[0]] == [lengths[0] + length for length in lengths[1:]]
    scores = [[each.outputs.score for each in row] for row in found]
    np.testing.assert_allclose(scores, expected, atol=2e-4, rtol=1e-4)
