"""Phi-4 multimodal in its authors' format: images are seen with an adapter, and texts are read without it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from jaxllm import LLM
from jaxllm.errors import ConfigError, RequestError
from jaxllm.requests.lora_request import LoRARequest
from jaxllm.serving.text.adapters import default_adapter
from tests.e2e.images.families.phi4_published import ADAPTED, CASES, TOKENS
from tests.e2e.images.test_families import GREEDY, Saved

RANK, ALPHA = 8, 16
TEXT = "A text without pictures."
TEMPLATE = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}{% endfor %}"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, demo_folder: Path) -> Saved:
    return Saved(CASES["phi-4 published"], tmp_path_factory.mktemp("phi4"), demo_folder)


def write_adapter(saved: Saved, folder: Path) -> dict[str, torch.Tensor]:
    """An adapter as in the folder `vision-lora` of the published model, and what it adds to transformers' weights."""
    random = np.random.default_rng(0)
    tensors: dict[str, np.ndarray] = {}
    added: dict[str, torch.Tensor] = {}
    for name, parameter in saved.model.named_parameters():
        module = name.removesuffix(".weight")
        if name.startswith("model.layers.") and module.endswith(ADAPTED):
            a, b = (random.standard_normal(shape).astype(np.float32) * np.float32(0.2)
                    for shape in ((RANK, parameter.shape[1]), (parameter.shape[0], RANK)))  # fmt: skip
            tensors |= {f"base_model.model.{module}.lora_{part}.weight": value for part, value in (("A", a), ("B", b))}
            added[name] = torch.from_numpy(b @ a) * (ALPHA / RANK)
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "target_modules": list(ADAPTED)}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return added


def of_text(saved: Saved) -> list[int]:
    """Transformers' answer to a text."""
    ids = saved.processor.tokenizer(TEXT, return_tensors="pt").input_ids
    with torch.no_grad():
        found = saved.model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False,
            eos_token_id=None, pad_token_id=0,
        )  # fmt: skip
    return found[0, ids.shape[1] :].tolist()


def test_images_bring_their_adapter(saved: Saved, tmp_path: Path) -> None:
    added = write_adapter(saved, tmp_path / "vision-lora")
    plain = of_text(saved)
    images, marker = saved.images(), TOKENS["image_token"]
    texts = [f"Look: {marker} and tell.", f"One: {marker} or {marker}?"]
    given = [images[:1], images]
    unadapted = saved.answer(texts[0], given[0])[1]
    with torch.no_grad():
        for name, parameter in saved.model.named_parameters():
            if name in added:
                parameter.add_(added[name])
    wanted = [saved.answer(text, some) for text, some in zip(texts, given, strict=True)]
    numbered = [texts[0].replace(marker, "<|image_1|>"), "One: <|image_1|> or <|image_2|>?"]
    prompts: list[Any] = [
        {"prompt": text, "multi_modal_data": {"image": some}} for text, some in zip(numbered, given, strict=True)
    ]
    with LLM(
        str(saved.folder), max_model_len=256, max_num_seqs=4, max_num_batched_tokens=8, optimization_level=0,
        enforce_eager=True, enable_lora=True, max_lora_rank=8,
        default_mm_loras={"image": str(tmp_path / "vision-lora")},
    ) as llm:  # fmt: skip
        *seen, read = llm.generate([*prompts, TEXT], GREEDY, use_tqdm=False)
        found = [(list(each.prompt_token_ids or ()), list(each.outputs[0].token_ids)) for each in seen]
        # The template takes text alone.
        parts = [{"type": "text", "text": "Not <|image_1|>."}, {"type": "image_pil", "image_pil": images[0]}]
        messages: list[Any] = [{"role": "user", "content": parts}]
        (chatted,) = llm.chat(messages, GREEDY, chat_template=TEMPLATE, use_tqdm=False)
        named = LoRARequest("own", 1, str(tmp_path / "vision-lora"))
        (own,) = llm.generate([TEXT], GREEDY, use_tqdm=False, lora_request=named)
    assert found == wanted
    assert found[0][1] != unadapted
    told = list(chatted.prompt_token_ids or ()), list(chatted.outputs[0].token_ids)
    assert told == saved.answer(f"user: {marker}\nNot <|image_1|>.", images[:1])
    assert list(read.outputs[0].token_ids) == plain
    assert list(own.outputs[0].token_ids) == of_text(saved) != plain


def test_one_adapter_for_a_prompt() -> None:
    assert default_adapter({"image": "/a"}, ["audio"]) is None
    assert default_adapter({"image": "/a", "audio": "/a"}, ["audio", "image"]) is not None
    with pytest.raises(RequestError, match="a prompt with audio and image has no one adapter"):
        default_adapter({"image": "/a", "audio": "/b"}, ["audio", "image"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"default_mm_loras": {"image": "/a"}}, "default_mm_loras needs enable_lora"),
        ({"default_mm_loras": {"smell": "/a"}, "enable_lora": True}, "expected image or video or audio"),
        ({"default_mm_loras": {"image": "/nowhere"}, "enable_lora": True}, "there is no folder /nowhere"),
    ],
)
def test_what_no_request_could_have(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LLM("demo", **options)
