"""A small model that sees images, and the answers that transformers gives with it."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer, Idefics3Config, Idefics3ForConditionalGeneration, Idefics3Processor
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

from tests.e2e.images.prompts import IMAGE, MERGE, PATCH, ROWS, SIDE, Parts


def save_small_model(folder: Path, vocab_size: int = IMAGE + 1, image_token: int = IMAGE) -> None:
    """Write a model with random weights that answers differently to different images."""
    torch.manual_seed(0)
    config = Idefics3Config(
        vision_config={
            "hidden_size": 64, "image_size": PATCH * SIDE, "patch_size": PATCH, "num_hidden_layers": 2,
            "num_attention_heads": 4, "intermediate_size": 96,
        },
        text_config={
            "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": vocab_size,
            "max_position_embeddings": 512, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
            "tie_word_embeddings": False,
        },
        scale_factor=MERGE, image_token_id=image_token, pad_token_id=0, tie_word_embeddings=False,
    )  # fmt: skip
    model = Idefics3ForConditionalGeneration(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)


TOKENS = ("<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>", "<|im_start|>")
TEMPLATE = (
    "<|im_start|>{% for message in messages %}{{ message['role'] | capitalize }}:"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'text' %} {{ part['text'] }}{% elif part['type'] == 'image' %}<image>{% endif %}"
    "{% endfor %}<end_of_utterance>\n{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"
)


def save_whole_model(folder: Path, demo: Path) -> Any:
    """Write such a model with a tokenizer and an image processor. Returns transformers' processor.

    Images become tiles of 56 pixels each way, at most two by two, and 4 rows each.
    """
    tokenizer = AutoTokenizer.from_pretrained(demo)
    places = [f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2)]
    tokenizer.add_special_tokens({"additional_special_tokens": [*TOKENS, *places]})
    tokenizer.chat_template = TEMPLATE
    images = Idefics3ImageProcessorPil(
        size={"longest_edge": 2 * PATCH * SIDE}, max_image_size={"longest_edge": PATCH * SIDE}
    )
    processor = Idefics3Processor(images, tokenizer, image_seq_len=ROWS, chat_template=TEMPLATE)
    processor.save_pretrained(folder)
    save_small_model(folder, len(tokenizer), tokenizer.convert_tokens_to_ids("<image>"))
    return processor


def expected(model: Any, prompt: Parts, count: int) -> list[int]:
    """The tokens that transformers continues a prompt with."""
    token_ids: list[int] = []
    crops: list[np.ndarray] = []
    for part in prompt:
        token_ids += [IMAGE] * (len(part) * ROWS) if isinstance(part, list) else [part]
        crops += part if isinstance(part, list) else []
    numbers = [(np.float32(1 / 255) * crop.astype(np.float32) - np.float32(0.5)) / np.float32(0.5) for crop in crops]
    images = {"pixel_values": torch.from_numpy(np.stack(numbers).transpose(0, 3, 1, 2))[None]} if crops else {}
    ids = torch.tensor([token_ids])
    found = model.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False, eos_token_id=None,
        **images,
    )  # fmt: skip
    return [int(token) for token in found[0][len(token_ids) :]]
