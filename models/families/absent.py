"""Decoders that transformers has and this package lacks, each with what it needs: names are classes of 5.24.

The tests compare the names with transformers' list of causal classes, and `docs/absent-models.md` with this table. A
reason is in the words of docs/add-a-model.md: what a layer plan cannot say yet, or that a family file is all it takes.
"""

from collections.abc import Mapping
from typing import Final

DECODER_OF_TWO: Final = "the decoder of an encoder-decoder model, which attends to what the encoder gives"
FILE: Final = "no new layer: a family file"

ABSENT: Final[Mapping[str, str]] = {
    "BartForCausalLM": DECODER_OF_TWO,
    "BeamForCausalLM": "residuals that are divided by a number of their depth, and gates with a bias for each head",
    "BigBirdPegasusForCausalLM": DECODER_OF_TWO,
    "BlenderbotForCausalLM": DECODER_OF_TWO,
    "BlenderbotSmallForCausalLM": DECODER_OF_TWO,
    "BltForCausalLM": "bytes in patches, whose lengths a second model chooses",
    "CpmAntForCausalLM": "biases by buckets of distance, and segments that see each other both ways",
    "DogeForCausalLM": "masks that are made of values, and experts that are looked up by product keys",
    "DoryForCausalLM": "layers that run several times with caches of their own",
    "FuyuForCausalLM": "patches that are projected without a tower, into Persimmon",
    "Gemma4AssistantForCausalLM": "a drafter: it reads another model's keys and values",
    "Gemma4UnifiedAssistantForCausalLM": "a drafter: it reads another model's keys and values",
    "GitForCausalLM": "a tower whose patches every token sees, before a causal BERT",
    "HrmTextForCausalLM": "two stacks of layers that run several times in turn",
    "Inkling2ForCausalLM": "dynamic short convolutions and residuals over blocks, which no plan has",
    "Inkling2LoopForCausalLM": "dynamic short convolutions, and layers that run several times",
    "InklingForCausalLM": "short convolutions alongside attention, and logits by relative position",
    "MBartForCausalLM": DECODER_OF_TWO,
    "MarianForCausalLM": DECODER_OF_TWO,
    "MllamaForCausalLM": "layers that attend to images by cross attention",
    "MoshiForCausalLM": "several streams of sound, with a second decoder for each step",
    "MossTranscribeDiarizeForConditionalGeneration": f"{FILE}; a hearing model like Qwen2-Audio",
    "MusicgenForCausalLM": "several codebooks of sound for each step",
    "MusicgenMelodyForCausalLM": "several codebooks of sound for each step",
    "MvpForCausalLM": DECODER_OF_TWO,
    "PLBartForCausalLM": DECODER_OF_TWO,
    "PegasusForCausalLM": DECODER_OF_TWO,
    "ProphetNetForCausalLM": "several streams that predict several tokens, in the decoder of an encoder-decoder model",
    "ReformerModelWithLMHead": "attention within buckets of hashes",
    "RoCBertForCausalLM": "shapes and pronunciations of tokens, which requests do not have",
    "TrOCRForCausalLM": DECODER_OF_TWO,
    "WhisperForCausalLM": f"{DECODER_OF_TWO}; the whole of Whisper is here",
    "XLMWithLMHeadModel": "embeddings of languages, and attention both ways",
    "XLNetLMHeadModel": "permuted orders of tokens, and relative positions",
    "XmodForCausalLM": "an adapter of a language after every MLP of a causal BERT",
    "ZayaForCausalLM": "convolutions over queries and keys, and routers with an MLP",
}
"""By architecture, as checkpoints name it."""
