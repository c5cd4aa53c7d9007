"""Which architectures are known, by the name that checkpoints give in `architectures`."""

from dataclasses import dataclass, replace
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points

from jaxllm.models.errors import ModelError
from jaxllm.models.families.family import Family, Use
from jaxllm.models.families.uses import token_classifier

ENTRY_POINTS = "jaxllm.models"
"""Installed packages announce models under this entry point group: `Architecture = "package.module:FAMILY"`."""

_LONGEST = 200
"""Characters of a name that an error quotes."""

_USES = (
    "ForCausalLM",
    "LMHeadModel",
    "ForConditionalGeneration",
    "ForMaskedLM",
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForProcessRewardModel",
    "ForRewardModel",
    "ForRetrieval",
    "Model",
)
"""The endings of the names of architectures."""

_DECODERS: dict[str, str] = {
    "Afmoe": "afmoe",
    "Apertus": "apertus",
    "Apertus1p5Text": "apertus.V15",
    "Aquila": "llama_like.AQUILA",
    "Arctic": "arctic",
    "AriaText": "aria",
    "Arcee": "llama_like.ARCEE",
    "BailingHybrid": "kimi_linear.BAILING",
    "Bamba": "bamba",
    "BitNet": "bitnet",
    "BioGpt": "biogpt",
    "Cohere": "cohere",
    "AXK1": "deepseek.AXK1",
    "AXK2": "axk2",
    "Cohere2": "cohere.COHERE2",
    "Cohere2Moe": "cohere2_moe",
    "CohereCompass": "cohere.COMPASS",
    "Dbrx": "dbrx",
    "Cwm": "llama_like.CWM",
    "DeciLM": "llama_like.DECILM",
    "DeepseekV2": "deepseek.V2",
    "DeepseekV3": "deepseek.V3",
    "DeepseekV32": "deepseek_sparse.V32",
    "DeepseekV4": "deepseek_v4",
    "DiffLlama": "diffllama",
    "Dots1": "glm4_moe.DOTS1",
    "Dots3Note": "dots3_note",
    "Emu3": "llama_like.EMU3",
    "Ernie4_5": "ernie4_5",
    "Ernie4_5_Moe": "ernie4_5.MOE",
    "Exaone4": "exaone4",
    "ExaoneMoe": "exaone4.MOE",
    "Flint": "flint",
    "FlexOlmo": "olmoe.FLEX_OLMO",
    "Gemma": "gemma",
    "Gemma2": "gemma.GEMMA2",
    "Gemma3": "gemma.GEMMA3",
    "Gemma3n": "gemma3n",
    "Gemma4": "gemma4",
    "Gemma4Unified": "gemma4.UNIFIED",
    "Glm": "glm",
    "Glm4": "glm.GLM4",
    "Glm4Moe": "glm4_moe",
    "Glm4MoeLite": "deepseek.GLM4_LITE",
    "GlmMoeDsa": "deepseek_sparse.GLM5",
    "GptOss": "gpt_oss",
    "Granite": "granite",
    "GraniteMoe": "granitemoe",
    "GraniteMoeHybrid": "granite_hybrid",
    "GraniteMoeSWA": "granitemoe.SWA",
    "GraniteMoeShared": "granitemoe",
    "Helium": "llama_like.HELIUM",
    "GraniteSWA": "granite.SWA",
    "HYV3": "hy_v3",
    "HYV4": "hy_v4",
    "HunYuanDenseV1": "hunyuan",
    "HunYuanMoEV1": "hunyuan.MOE",
    "HyperCLOVAX": "granite.HYPERCLOVAX",
    "InternLM": "llama_like.INTERNLM",
    "InternLM2": "llama_like.INTERNLM2",
    "InternLM3": "llama_like.INTERNLM3",
    "KimiK2": "deepseek.KIMI_K2",
    "KimiLinear": "kimi_linear",
    "Kolibri1": "kolibri1",
    "Laguna": "laguna",
    "LaraMini": "lara_mini",
    "Lfm3": "lfm2.LFM3",
    "LongcatFlash": "longcat_flash",
    "ModernBertDecoder": "modernbert_decoder",
    "GPTNeoXJapanese": "gpt_neox_japanese",
    "XGLM": "xglm",
    "Jais2": "nemotron.JAIS2",
    "FalconH1": "falcon_h1",
    "FalconMamba": "mamba.FALCON_MAMBA",
    "Jamba": "jamba",
    "JetMoE": "jetmoe",
    "JetMoe": "jetmoe",
    "Lfm2": "lfm2",
    "Lfm2Moe": "lfm2.MOE",
    "Llama": "llama",
    "Llama4": "llama4",
    "Mamba": "mamba",
    "Mamba2": "mamba2",
    "Mellum": "mellum",
    "MiniCPM": "granite.MINICPM",
    "MiniCPM3": "minicpm3",
    "MiMoV2Flash": "mimo_v2",
    "MiniMax": "minimax",
    "MiniMaxM2": "minimax_m2",
    "MiniMaxM3VL": "minimax_m3",
    "Ministral": "ministral",
    "Ministral3": "ministral.MINISTRAL3",
    "Mistral": "mistral",
    "Mistral4": "deepseek.MISTRAL4",
    "Mixtral": "mixtral",
    "NanoChat": "nanochat",
    "Nemotron": "nemotron",
    "NemotronH": "nemotron_h",
    "Olmo": "olmo",
    "Olmo2": "olmo.OLMO2",
    "Olmo3": "olmo.OLMO3",
    "OlmoHybrid": "olmo_hybrid",
    "Olmoe": "olmoe",
    "Orion": "llama_like.ORION",
    "Persimmon": "persimmon",
    "Phi3": "phi3",
    "PhiMoE": "phimoe",
    "Phimoe": "phimoe",
    "Qwen2": "qwen2",
    "Qwen2Moe": "qwen2_moe",
    "Qwen3": "qwen3",
    "Qwen3Moe": "qwen3_moe",
    "Qwen3Next": "qwen3_next",
    "Qwen3_5": "qwen3_next.QWEN3_5",
    "Qwen3_5Moe": "qwen3_next.QWEN3_5_MOE",
    "Qwen4Exp": "qwen4_exp",
    "RecurrentGemma": "recurrent_gemma",
    "Rwkv": "rwkv",
    "SeedOss": "llama_like.SEED_OSS",
    "SmolLM3": "smollm3",
    "SolarOpen": "glm4_moe.SOLAR_OPEN",
    "StableLm": "stablelm",
    "Starcoder2": "starcoder2",
    "VaultGemma": "gemma.VAULTGEMMA",
    "Xverse": "llama_like.XVERSE",
    "Yi": "llama_like.YI",
    "xLSTM": "xlstm",
    "Youtu": "youtu",
    "Zamba": "zamba",
    "Zamba2": "zamba2",
}
"""Modules of decoders, which all generate, embed and classify. A dot leads to another name there than `FAMILY`."""


@dataclass(frozen=True)
class _Known:
    """A family that is imported when it is asked for: each costs a millisecond, and a process needs one.

    `path` is its module, then a dot and the name in it unless that is `FAMILY`. `use` replaces the family's. `head` is
    what checkpoints of classifiers of tokens call the layer after each of them.
    """

    path: str
    use: Use | None = None
    head: str = ""

    def load(self) -> Family:
        module, _, name = self.path.partition(".")
        family: Family = getattr(import_module(f"jaxllm.models.families.{module}"), name or "FAMILY")
        if self.head:
            return token_classifier(family, self.head)
        return family if self.use is None else replace(family, use=self.use)


def _decoder(name: str, path: str, *, model: str = "ForCausalLM", head: str = "score") -> dict[str, _Known]:
    """A decoder's architectures; the one that ends in `model` generates."""
    return {f"{name}{model}": _Known(path), f"{name}Model": _Known(path, "embed"), **_classifiers(name, path, head)}


def _encoder(name: str, path: str) -> dict[str, _Known]:
    """An encoder's architectures."""
    known = _Known(path)
    return {f"{name}Model": known, f"{name}ForMaskedLM": known, **_classifiers(name, path, "classifier")}


def _classifiers(name: str, path: str, head: str) -> dict[str, _Known]:
    return {
        f"{name}ForSequenceClassification": _Known(path, "classify"),
        f"{name}ForTokenClassification": _Known(path, head=head),
    }


_GPT = {
    "Bloom": "bloom",
    "CodeGen": "gptj.CODEGEN",
    "Falcon": "falcon",
    "GPTBigCode": "gpt_bigcode",
    "GPTJ": "gptj",
    "GPTNeo": "gpt_neo",
    "GPTNeoX": "gpt_neox",
    "Mpt": "mpt",
    "OPT": "opt",
    "Phi": "phi",
}
"""Decoders whose heads for tokens have another name."""

_ENCODERS = {
    "Albert": "albert",
    "Bert": "bert",
    "DebertaV2": "deberta_v2",
    "DistilBert": "distilbert",
    "Electra": "electra",
    "Gte": "rotary_bert.GTE",
    "GteNew": "rotary_bert.GTE",
    "JinaEmbeddingsV3": "rotary_bert.JINA_V3",
    "ModernBert": "modernbert",
    "New": "rotary_bert.GTE",
    "NomicBert": "rotary_bert.NOMIC",
    "Roberta": "roberta",
    "XLMRoberta": "roberta",
}

_CAUSAL_BERTS = {
    "BertGenerationDecoder": "GENERATION",
    "BertLMHeadModel": "BERT",
    "BigBirdForCausalLM": "BIG_BIRD",
    "CamembertForCausalLM": "ROBERTA",
    "Data2VecTextForCausalLM": "DATA2VEC",
    "ElectraForCausalLM": "ELECTRA",
    "ErnieForCausalLM": "ERNIE",
    "MegatronBertForCausalLM": "MEGATRON",
    "RemBertForCausalLM": "REMBERT",
    "RoFormerForCausalLM": "ROFORMER",
    "RobertaForCausalLM": "ROBERTA",
    "RobertaPreLayerNormForCausalLM": "PRE_NORM",
    "XLMRobertaForCausalLM": "ROBERTA",
    "XLMRobertaXLForCausalLM": "ROBERTA_XL",
}
"""Generators whose other uses are those of encoders."""

_FAMILIES: dict[str, _Known | Family | EntryPoint] = {
    **{use: known for name, path in _DECODERS.items() for use, known in _decoder(name, path).items()},
    **{use: known for name, path in _GPT.items() for use, known in _decoder(name, path, head="classifier").items()},
    **{use: known for name, path in _ENCODERS.items() for use, known in _encoder(name, path).items()},
    **_decoder("OpenAIGPT", "openai_gpt", model="LMHeadModel"),
    **_decoder("GPT2", "gpt2", model="LMHeadModel", head="classifier"),
    **_decoder("CTRL", "xglm.CTRL", model="LMHeadModel"),
    **{architecture: _Known(f"causal_bert.{name}") for architecture, name in _CAUSAL_BERTS.items()},
    "AlbertForPreTraining": _Known("albert"),
    "Apertus1p5ForConditionalGeneration": _Known("apertus.V15"),
    "AudioFlamingo3ForConditionalGeneration": _Known("hearing.FLAMINGO"),
    "AyaVisionForConditionalGeneration": _Known("aya_vision"),
    "BaiChuanForCausalLM": _Known("baichuan.FIRST"),
    "BaichuanForCausalLM": _Known("baichuan"),
    "BgeM3EmbeddingModel": _Known("roberta.BGE_M3"),
    "ChatGLMForConditionalGeneration": _Known("chatglm"),
    "ChatGLMModel": _Known("chatglm"),
    "Cohere2VisionForConditionalGeneration": _Known("cohere2_vision"),
    "CohereCompassTextForSequenceClassification": _Known("cohere.COMPASS", "classify"),
    "ColBERTJinaRobertaModel": _Known("colbert.JINA"),
    "ColBERTModel": _Known("colbert.BERT"),
    "ColBERTModernBertModel": _Known("colbert.MODERN_BERT"),
    "ColPaliForRetrieval": _Known("colvision.PALI"),
    "ColQwen2ForRetrieval": _Known("colvision.QWEN2"),
    "DeepseekOCR2ForCausalLM": _Known("deepseek_ocr2.PUBLISHED"),
    "DeepseekOCRForCausalLM": _Known("deepseek_ocr"),
    "DeepseekOcr2ForConditionalGeneration": _Known("deepseek_ocr2"),
    "DeepseekVLForConditionalGeneration": _Known("deepseek_vl"),
    "Dots3NoteForConditionalGeneration": _Known("dots3_note"),
    "ElectraForPreTraining": _Known("electra"),
    "EuroBertForMaskedLM": _Known("llama.BIDIRECTIONAL", "embed"),
    "EuroBertModel": _Known("llama.BIDIRECTIONAL", "embed"),
    "Gemma3ForConditionalGeneration": _Known("gemma_images.GEMMA3"),
    "Gemma3nForConditionalGeneration": _Known("gemma3n"),
    "Gemma3nTextModel": _Known("gemma3n", "embed"),
    "Gemma4ForConditionalGeneration": _Known("gemma4_images"),
    "Gemma4TextModel": _Known("gemma4", "embed"),
    "Gemma4UnifiedForConditionalGeneration": _Known("gemma4.UNIFIED"),
    "Gemma4UnifiedTextModel": _Known("gemma4.UNIFIED", "embed"),
    "Gemma3TextForSequenceClassification": _Known("gemma.GEMMA3", "classify"),
    "Gemma3TextModel": _Known("gemma.GEMMA3", "embed"),
    "Glm46VForConditionalGeneration": _Known("glm4v"),
    "Glm5NextForConditionalGeneration": _Known("glm5_next"),
    "GlmOcrForConditionalGeneration": _Known("glm4v.OCR"),
    "Glm4vForConditionalGeneration": _Known("glm4v"),
    "Glm4vMoeForConditionalGeneration": _Known("glm4v.MOE"),
    "GlmAsrForConditionalGeneration": _Known("hearing.GLM_ASR"),
    "GotOcr2ForConditionalGeneration": _Known("got_ocr2"),
    "HF_ColBERT": _Known("colbert.BERT"),
    "Idefics2ForConditionalGeneration": _Known("idefics2"),
    "Idefics3ForConditionalGeneration": _Known("idefics3"),
    "InternLM2ForRewardModel": _Known("llama_like.INTERNLM2_REWARD"),
    "InternVLChatModel": _Known("internvl_chat"),
    "InternVLForConditionalGeneration": _Known("internvl"),
    "JAISLMHeadModel": _Known("jais"),
    "JanusForConditionalGeneration": _Known("janus"),
    "KimiK25ForConditionalGeneration": _Known("kimi_k25"),
    "KimiVLForConditionalGeneration": _Known("kimi_k25.KIMI_VL"),
    "Kimi_K25ForConditionalGeneration": _Known("kimi_k25"),
    "Lfm2VlForConditionalGeneration": _Known("lfm2_vl"),
    "LightOnOcrForConditionalGeneration": _Known("mistral3.LIGHTON"),
    "Llama4ForConditionalGeneration": _Known("llama4_images"),
    "LlavaForConditionalGeneration": _Known("llava"),
    "LlavaNextForConditionalGeneration": _Known("llava.NEXT"),
    "LlavaNextVideoForConditionalGeneration": _Known("llava.NEXT_VIDEO"),
    "LlavaOnevisionForConditionalGeneration": _Known("llava.ONE_VISION"),
    "LlamaBidirectionalForSequenceClassification": _Known("llama.BIDIRECTIONAL", "classify"),
    "LlamaBidirectionalModel": _Known("llama.BIDIRECTIONAL", "embed"),
    "MPTForCausalLM": _Known("mpt"),
    "MiniCPMV4_6ForConditionalGeneration": _Known("minicpmv"),
    "MiniMaxM3SparseForConditionalGeneration": _Known("minimax_m3.SEEING"),
    "Mistral3ForConditionalGeneration": _Known("mistral3"),
    "MistralLarge4ForConditionalGeneration": _Known("mistral_large4"),
    "ModernBertForTokenClassification": _Known("modernbert", "token_classify"),
    "PaddleOCRVLForConditionalGeneration": _Known("paddleocr_vl"),
    "PaliGemmaForConditionalGeneration": _Known("gemma_images.PALIGEMMA"),
    "Phi3VForCausalLM": _Known("phi3_vision"),
    "Phi4MMForCausalLM": _Known("phi4_multimodal.PUBLISHED"),
    "Phi4MultimodalForCausalLM": _Known("phi4_multimodal"),
    "QianfanOCRForConditionalGeneration": _Known("internvl_chat.QIANFAN"),
    "Qwen2ForProcessRewardModel": _Known("qwen2.PROCESS_REWARD"),
    "Qwen2ForRewardModel": _Known("qwen2.REWARD"),
    "Qwen2AudioForConditionalGeneration": _Known("hearing"),
    "Qwen2VLForConditionalGeneration": _Known("qwen_vl.QWEN2"),
    "Qwen2_5_VLForConditionalGeneration": _Known("qwen_vl.QWEN2_5"),
    "Qwen3VLForConditionalGeneration": _Known("qwen_vl.QWEN3_DENSE"),
    "Qwen3VLForSequenceClassification": _Known("qwen_vl.QWEN3_DENSE", "classify"),
    "Qwen3VLMoeForConditionalGeneration": _Known("qwen_vl.QWEN3_MOE"),
    "Qwen3_5ForConditionalGeneration": _Known("qwen3_next.QWEN3_5"),
    "Qwen3_5MoeForConditionalGeneration": _Known("qwen3_next.QWEN3_5_MOE"),
    "Qwen4ExpForConditionalGeneration": _Known("qwen4_exp"),
    "RWForCausalLM": _Known("falcon"),
    "SmolVLMForConditionalGeneration": _Known("idefics3"),
    "UltravoxModel": _Known("ultravox"),
    "VipLlavaForConditionalGeneration": _Known("llava.VIP"),
    "VoxtralForConditionalGeneration": _Known("hearing.VOXTRAL"),
    "WhisperForConditionalGeneration": _Known("whisper"),
}


def register(architecture: str, family: Family | str) -> None:
    """Make a model known to this process, or replace one; as "package.module:FAMILY" it is imported when asked for.

    The engine may run in a process of its own, which does not see this call; a package that others install uses the
    entry point group `jaxllm.models` instead, which every process reads. Raises `ModelError` for another string.
    """
    if isinstance(family, Family):
        _FAMILIES[architecture] = family
        return
    entry = EntryPoint(architecture, family, ENTRY_POINTS)
    if entry.pattern.fullmatch(family) is None or not entry.attr:
        raise ModelError(f'{architecture}: {family!r} is not a path to a Family, such as "package.module:FAMILY"')
    _FAMILIES[architecture] = entry


def known_architectures() -> list[str]:
    """All names that `lookup` finds, sorted."""
    return sorted({*_FAMILIES, *(entry.name for entry in entry_points(group=ENTRY_POINTS))})


def lookup(architecture: str) -> Family:
    """The family of an architecture. Raises `ModelError`, which names the families there are."""
    if architecture in _FAMILIES:
        known = _FAMILIES[architecture]
        if isinstance(known, EntryPoint):
            return _loaded(known)
        return known.load() if isinstance(known, _Known) else known
    for entry in entry_points(group=ENTRY_POINTS):
        if entry.name == architecture:
            return _loaded(entry)
    raise ModelError(_unknown(architecture))


def _loaded(entry: EntryPoint) -> Family:
    """The family that an entry point leads to. Raises `ModelError`."""
    try:
        family = entry.load()
    except (ImportError, AttributeError) as error:
        raise ModelError(f"entry point {entry.value!r} for {entry.name!r} cannot be loaded: {error}") from error
    if not isinstance(family, Family):
        raise ModelError(f"entry point {entry.value!r} for {entry.name!r} is not a jaxllm Family")
    return family


def families() -> dict[str, Family]:
    """All that are known, by architecture; those of installed packages are loaded. Raises `ModelError`."""
    return {architecture: lookup(architecture) for architecture in known_architectures()}


def known_families() -> list[str]:
    """The part before the use in the names of `known_architectures`: Llama, Qwen3, ..."""
    return sorted({split(name)[0] for name in known_architectures()}, key=str.lower)


def split(architecture: str) -> tuple[str, str]:
    """Family and use of an architecture: ("Llama", "ForCausalLM")."""
    use = next((use for use in _USES if architecture.endswith(use) and architecture != use), "")
    return architecture.removesuffix(use), use


def _unknown(architecture: str) -> str:
    """Why a name is not known, and what is."""
    if len(architecture) > _LONGEST:
        return f"unknown architecture {architecture[:_LONGEST]!r}...: `jaxllm models` lists all"
    family, _ = split(architecture)
    families = known_families()
    if family in families:
        known = [name for name in known_architectures() if split(name)[0] == family]
        return f"unknown architecture {architecture!r}: supported architectures of {family} are {', '.join(known)}"
    # Neighbours in name only, such as Qwen3 for Qwen3Moe, are different models: they are not offered in its place.
    nearest = get_close_matches(architecture, known_architectures(), n=3)
    named = f"; the nearest names are {', '.join(nearest)}" if nearest else ""
    return (
        f"unknown architecture {architecture!r}: {family} is not supported{named}; `jaxllm models` lists all "
        "supported ones, and docs/add-a-model.md explains how to add one"
    )
