"""Small models that hear in chats, with all their files, and what transformers answers with them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import AutoTokenizer, WhisperFeatureExtractor
from transformers.models.audioflamingo3.processing_audioflamingo3 import AudioFlamingo3Processor
from transformers.models.glmasr.processing_glmasr import GlmAsrProcessor
from transformers.models.qwen2_audio.processing_qwen2_audio import Qwen2AudioProcessor

from jaxllm.serving.media.audio.resample import RATE, Samples
from jaxllm.serving.options.named_templates import named_template
from tests.e2e.sound import ultravox

SECONDS, BINS = 2, 16
"""Of a window, which so has 100 positions; and mel bins."""
QWEN_TEMPLATE = Qwen2AudioProcessor.default_chat_template.fget(None)
_PARTS = (
    "{%% for message in messages %%}%s{%% if message['content'] is string %%}{{ message['content'] }}{%% else %%}"
    "{%% for part in message['content'] %%}{%% if part['type'] == 'audio' %%}%s{%% elif part['type'] == 'text' %%}"
    "{{ part['text'] }}{%% endif %%}{%% endfor %%}{%% endif %%}%s{%% endfor %%}"
)
AUDIO_CONFIG = {"max_source_positions": SECONDS * 50, "num_mel_bins": BINS}
WHISPER_SIZES = {"d_model": 64, "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 96}
SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256}
TEXT_CONFIG = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 1024, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "tie_word_embeddings": False,
}  # fmt: skip


@dataclass(frozen=True)
class Family:
    """A family: the names of its classes, its tokens, its template, and what its processor makes of sounds."""

    name: str
    token: str
    others: tuple[str, ...]
    template: str
    text_type: str
    audio_config: dict[str, Any]
    token_field: str
    inputs: Callable[[Any, Sequence[Samples]], tuple[dict[str, Any], list[int]]]
    """From the extractor and the sounds: inputs of the model, and how many tokens each sound has."""
    spare: str | None = None
    """The token whose number the marker gets, where the embedding has no row for its own."""


def _qwen(extract: Any, sounds: Sequence[Samples]) -> tuple[dict[str, Any], list[int]]:
    processor = Qwen2AudioProcessor.__new__(Qwen2AudioProcessor)
    processor.feature_extractor, processor.audio_token = extract, "x"
    made, texts = processor._process_audio(list(sounds), sampling_rate=RATE, return_tensors="pt")
    return {key: made[key] for key in ("input_features", "feature_attention_mask")}, [len(text) for text in texts]


def _flamingo(extract: Any, sounds: Sequence[Samples]) -> tuple[dict[str, Any], list[int]]:
    processor = AudioFlamingo3Processor.__new__(AudioFlamingo3Processor)
    processor.feature_extractor, processor.audio_token, processor.max_audio_len = extract, "x", 600
    given = {**AudioFlamingo3Processor.audio_kwargs, "padding": "max_length"}
    made, texts = processor._process_audio(list(sounds), **given)
    return {key: made[key] for key in ("input_features", "input_features_mask")}, [len(text) for text in texts]


def _glm(extract: Any, sounds: Sequence[Samples]) -> tuple[dict[str, Any], list[int]]:
    processor = GlmAsrProcessor.__new__(GlmAsrProcessor)
    processor.feature_extractor, processor.audio_token, processor.max_audio_len = extract, "x", 655
    made, texts = processor._process_audio(list(sounds), **GlmAsrProcessor.audio_kwargs, padding="max_length")
    return {key: made[key] for key in ("input_features", "input_features_mask")}, [len(text) for text in texts]


def _voxtral(extract: Any, sounds: Sequence[Samples]) -> tuple[dict[str, Any], list[int]]:
    """As VoxtralProcessor does it, whose tokenizer is not a dependency: sounds are filled up to whole windows."""
    found, counts = [], []
    for sound in sounds:
        made = extract(
            sound, sampling_rate=RATE, padding=True, truncation=False, pad_to_multiple_of=SECONDS * RATE,
            return_tensors="pt",
        )["input_features"]  # fmt: skip
        windows = made.reshape(BINS, -1, SECONDS * 100).transpose(0, 1)
        found.append(windows)
        counts.append(len(windows) * SECONDS * 50 // 4)
    return {"input_features": torch.cat(found)}, counts


QWEN = Family(
    "Qwen2Audio", "<|AUDIO|>", ("<|audio_bos|>", "<|audio_eos|>", "<|im_start|>", "<|im_end|>"), QWEN_TEMPLATE,
    "qwen2", {**AUDIO_CONFIG, **WHISPER_SIZES, "model_type": "qwen2_audio_encoder"}, "audio_token_index", _qwen,
)  # fmt: skip
FLAMINGO = Family(
    "AudioFlamingo3", "<sound>", ("<|im_start|>", "<|im_end|>"),
    _PARTS % ("<|im_start|>", "<sound>", "<|im_end|>"), "qwen2", {**AUDIO_CONFIG, **SIZES}, "audio_token_id", _flamingo,
)  # fmt: skip
GLM = Family(
    "GlmAsr", "<|pad|>", ("<|user|>", "<|begin_of_audio|>", "<|end_of_audio|>"),
    _PARTS % ("<|user|>", "<|begin_of_audio|><|pad|><|end_of_audio|>", ""), "llama",
    {**SIZES, "max_position_embeddings": SECONDS * 50, "num_mel_bins": BINS}, "audio_token_id", _glm,
)  # fmt: skip
VOXTRAL = Family(
    "Voxtral", "[AUDIO]", ("[INST]", "[/INST]", "[BEGIN_AUDIO]"),
    named_template("voxtral") or "", "llama", {**AUDIO_CONFIG, **SIZES}, "audio_token_id",
    _voxtral,
)  # fmt: skip

ULTRAVOX = Family(
    "Ultravox", ultravox.MARKER, ("<|user|>",), _PARTS % ("<|user|>", ultravox.MARKER, ""), "llama",
    {**AUDIO_CONFIG, **WHISPER_SIZES}, "audio_token_index", ultravox.inputs, ultravox.SPARE,
)  # fmt: skip


def save(family: Family, folder: Path, demo: Path) -> None:
    """Write a model with random weights, the tokenizer of the demo model with more tokens, and the extractor."""
    tokenizer = AutoTokenizer.from_pretrained(demo)
    first, last = (family.spare, family.token) if family.spare else (family.token, None)
    tokenizer.add_special_tokens({"additional_special_tokens": [first, *family.others]})
    size = len(tokenizer)
    if last is not None:
        tokenizer.add_tokens([last], special_tokens=True)
    tokenizer.chat_template = family.template
    tokenizer.save_pretrained(folder)
    WhisperFeatureExtractor(feature_size=BINS, chunk_length=SECONDS).save_pretrained(folder)
    if family.spare:
        token = tokenizer.convert_tokens_to_ids(family.token)
        ultravox.save(folder, family.audio_config, {**TEXT_CONFIG, "vocab_size": size}, token)
        return
    torch.manual_seed(0)
    config = getattr(transformers, f"{family.name}Config")(
        audio_config=family.audio_config,
        text_config={**TEXT_CONFIG, "model_type": family.text_type, "vocab_size": size},
        **{family.token_field: tokenizer.convert_tokens_to_ids(family.token)},
    )
    model = _class(family)(config).eval()
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, mean=float("norm" in name and "weight" in name), std=0.3)
    model.save_pretrained(folder)


def reference_in(family: Family, folder: Path) -> Any:
    """The model of transformers."""
    return _class(family).from_pretrained(folder).eval()


def _class(family: Family) -> Any:
    if family.spare:
        return ultravox.Ultravox
    return getattr(transformers, f"{family.name}ForConditionalGeneration")


class Reference:
    """transformers' model and extractor in a folder."""

    def __init__(self, family: Family, folder: Path) -> None:
        self.family, self.folder = family, folder
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self._model = reference_in(family, folder)
        self._extract = WhisperFeatureExtractor.from_pretrained(folder / "whisper" if family.spare else folder)
        self.token_id: int = self.tokenizer.convert_tokens_to_ids(family.spare or family.token)

    def answer(self, messages: Any, sounds: Sequence[Samples], count: int = 8) -> tuple[list[int], list[int]]:
        """Token ids of the prompt of a conversation with parts of type "audio", and of the likeliest answer."""
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        inputs, counts = self.family.inputs(self._extract, sounds) if sounds else ({}, [])
        token, ids, left = self.tokenizer.convert_tokens_to_ids(self.family.token), [], list(counts)
        for each in self.tokenizer(text, add_special_tokens=False)["input_ids"]:
            ids += [each] * left.pop(0) if each == token else [each]
        tokens = torch.tensor([ids])
        with torch.no_grad():
            found = self._model.generate(
                input_ids=tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=count, do_sample=False,
                eos_token_id=None, **inputs,
            )[0].tolist()  # fmt: skip
        return [self.token_id if each == token else each for each in ids], found[len(ids) :]


def asking(*parts: str | None) -> list[Any]:
    """A user's message of texts, and sounds where there is None."""
    content = [{"type": "audio"} if part is None else {"type": "text", "text": part} for part in parts]
    return [{"role": "user", "content": content}]


def filled(messages: Sequence[Any], given: Sequence[dict[str, Any]]) -> list[Any]:
    """The messages with these parts in place of those of type "audio"."""
    left = list(given)
    return [
        {**each, "content": [left.pop(0) if part["type"] == "audio" else part for part in each["content"]]}
        for each in messages
    ]


def noise(seed: int, seconds: float) -> Samples:
    """Sound of 16 bits that is different for each seed."""
    drawn = np.random.default_rng(seed).normal(scale=0.1, size=int(seconds * RATE))
    return (np.round(np.clip(drawn, -1, 1) * 32767) / 32768).astype(np.float32)
