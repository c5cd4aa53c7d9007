"""Which architecture a configuration means, where it does not name one as this package does."""

from typing import Final

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.errors import ModelError
from jaxllm.models.families.registry import known_architectures, split

_OLD: Final = {
    "AquilaModel": "AquilaForCausalLM",
    "GPTBigCodeLMHeadModel": "GPTBigCodeForCausalLM",
    "StableLMEpochForCausalLM": "StableLmForCausalLM",
}
"""Names in published files that have others by now. Aquila's has its head for tokens all the same."""

_TYPES: Final = {
    "baichuan": "BaichuanForCausalLM",
    "bertgeneration": "BertGenerationDecoder",
    "emu3textmodel": "Emu3ForCausalLM",
    "gptsw3": "GPT2LMHeadModel",
    "hunyuanv1dense": "HunYuanDenseV1ForCausalLM",
    "hunyuanv1moe": "HunYuanMoEV1ForCausalLM",
    "iquestcoder": "LlamaForCausalLM",
    "nemotronnas": "DeciLMForCausalLM",
    "refinedweb": "FalconForCausalLM",
    "refinedwebmodel": "FalconForCausalLM",
    "stablelmepoch": "StableLmForCausalLM",
}
"""Types of models, in small letters, that are not spelled like the names of their architectures."""

_USES: Final = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration", "Model", "ForMaskedLM")
"""The use of a model without a name: generating, if its family does."""


def architecture_of(file: ConfigFile) -> str:
    """The first known name in `architectures`, however its letters are spelled; without names, that of `model_type`.

    Raises `ModelError` where neither is there. A name that is not known is returned: looking it up says what is.
    """
    given = file.values.get("architectures")
    names = [name for name in (given if isinstance(given, list) else [given]) if name]
    if not all(isinstance(name, str) for name in names):
        raise file.wrong("architectures", "a list of strings")
    if not names:
        return _of_type(file)
    known = known_architectures()
    spelled = {name.lower(): name for name in known}
    for name in names:
        found = _OLD.get(name) or (name if name in known else spelled.get(name.lower()))
        if found is not None:
            return found
    return names[0]


def _of_type(file: ConfigFile) -> str:
    if not file.has("model_type"):
        raise ModelError(
            f"{file.source}: both 'architectures' and 'model_type' are missing: one of them must name the model"
        )
    kind = file.text("model_type")
    # The language model of a larger one.
    wanted = _plain(kind.removesuffix("_text"))
    if wanted in _TYPES:
        return _TYPES[wanted]
    # Of a few, the language model has a name of its own.
    uses = {**_uses(wanted), **_uses(_plain(kind))}
    order = ("ForConditionalGeneration", *_USES) if file.values.get("text_config") else _USES
    if "ForMaskedLM" in uses and not file.values.get("is_decoder"):
        # An encoder, which generates only where it is said to.
        order = ("Model", *_USES)
    found = next((uses[use] for use in order if use in uses), None)
    if found is None:
        raise ModelError(
            f"{file.source}: 'architectures' is missing, and no architecture is known for 'model_type' "
            f"{kind[:200]!r}; `jaxllm models` lists all"
        )
    return found


def _uses(wanted: str) -> dict[str, str]:
    """Architectures of the family with this plain name, by their use."""
    return {use: name for name in known_architectures() for family, use in [split(name)] if _plain(family) == wanted}


def _plain(name: str) -> str:
    return "".join(filter(str.isalnum, name)).lower()
