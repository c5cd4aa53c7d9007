"""A small Whisper with a tokenizer and all files that a server reads, and what transformers understands with it."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend
from transformers import GenerationConfig, PreTrainedTokenizerFast, WhisperFeatureExtractor
from transformers.generation.logits_process import (
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
    WhisperTimeStampLogitsProcessor,
)

from jaxllm.serving.media.audio.resample import RATE, Samples
from tests.e2e.sound.hearing import reference_in, save_small_model

SECONDS, BINS, LENGTH = 2, 16, 64
"""Of a window; mel bins; tokens of prompt and text."""
SPECIAL = (
    *("<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|translate|>", "<|transcribe|>"),
    *("<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"),
)
TIMES = [f"<|{index * 0.02:.2f}|>" for index in range(SECONDS * 50 + 1)]
TEXTS = ["The cat sat on the mat. The dog ran to the cat, and the cat ran away.", "emoji 🙂 and ελληνικά"]
MOST_INITIAL = 20


def save_transcribing_model(folder: Path) -> None:
    """Write the model, its tokenizer and its configurations."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(
        TEXTS, trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    )
    backend.add_special_tokens(list(SPECIAL))
    backend.add_tokens([AddedToken(each, normalized=False) for each in TIMES])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|endoftext|>")
    tokenizer.save_pretrained(folder)
    tokens = tokenizer.get_vocab()
    end, start = tokens["<|endoftext|>"], tokens["<|startoftranscript|>"]
    save_small_model(
        folder, vocab_size=len(tokens), num_mel_bins=BINS, max_source_positions=SECONDS * 50,
        max_target_positions=LENGTH, eos_token_id=end, bos_token_id=end, pad_token_id=end, decoder_start_token_id=start,
    )  # fmt: skip
    WhisperFeatureExtractor(feature_size=BINS, chunk_length=SECONDS).save_pretrained(folder)
    config = GenerationConfig(eos_token_id=end, bos_token_id=end, decoder_start_token_id=start)
    config.suppress_tokens = [3, 7, *(tokens[each] for each in SPECIAL[1:-1])]
    config.begin_suppress_tokens = [tokens["Ġ"], end]
    config.max_initial_timestamp_index, config.is_multilingual = MOST_INITIAL, True
    config.save_pretrained(folder)


class Reference:
    """transformers' model, features and rules, in OpenAI's loop over one window."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
        self.tokens: dict[str, int] = self.tokenizer.get_vocab()
        self._model = reference_in(folder)
        self._extract = WhisperFeatureExtractor.from_pretrained(folder)
        self._config = GenerationConfig.from_pretrained(folder)
        self._config.no_timestamps_token_id = self.tokens["<|notimestamps|>"]

    def language(self, samples: Samples) -> str:
        """What the model takes the language of a window to be."""
        logits = self._logits(samples, [self.tokens["<|startoftranscript|>"]])
        return max(("en", "de"), key=lambda code: float(logits[0, self.tokens[f"<|{code}|>"]]))

    def window(self, samples: Samples, language: str, task: str = "transcribe") -> list[int]:
        """The tokens of a window, by the likeliest of each step, without the end."""
        names = ("<|startoftranscript|>", f"<|{language}|>", f"<|{task}|>")
        prompt = [self.tokens[each] for each in names]
        begin: Any = len(prompt)
        processors = [
            SuppressTokensAtBeginLogitsProcessor(self._config.begin_suppress_tokens, begin),
            SuppressTokensLogitsProcessor(self._config.suppress_tokens),
            WhisperTimeStampLogitsProcessor(self._config, begin),
        ]
        ids = list(prompt)
        while len(ids) < LENGTH and (len(ids) == begin or ids[-1] != self.tokens["<|endoftext|>"]):
            scores = self._logits(samples, ids)
            for each in processors:
                scores = each(torch.tensor([ids]), scores)
            ids.append(int(scores.argmax()))
        return [token for token in ids[begin:] if token != self.tokens["<|endoftext|>"]]

    def text(self, token_ids: list[int]) -> str:
        """Tokens as text, without timestamps."""
        first = self.tokens[TIMES[0]]
        found: str = self.tokenizer.decode([each for each in token_ids if each < first], skip_special_tokens=True)
        return found.strip()

    def _logits(self, samples: Samples, ids: list[int]) -> torch.Tensor:
        features = self._extract(samples, sampling_rate=RATE, return_tensors="pt")["input_features"]
        with torch.no_grad():
            found: torch.Tensor = self._model(features, decoder_input_ids=torch.tensor([ids])).logits[:, -1]
        return found


def clip(seed: int, seconds: float) -> Samples:
    """Sound that is different for each seed."""
    random = np.random.default_rng(seed)
    times = np.arange(int(seconds * RATE)) / RATE
    pitches = random.uniform(100, 4000, size=4)
    found = sum(np.sin(2 * np.pi * pitch * times) for pitch in pitches) * 0.1
    return np.round(found * 32767).astype(np.int16).astype(np.float32) / 32768
