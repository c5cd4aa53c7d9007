"""Which architectures are known, by the name that checkpoints give in `architectures`."""

from dataclasses import replace
from difflib import get_close_matches
from importlib.metadata import entry_points

from jaxllm.models.errors import ModelError
from jaxllm.models.families import bert, distilbert, llama, mistral, modernbert, qwen2, qwen3, roberta
from jaxllm.models.families.family import Family

ENTRY_POINTS = "jaxllm.models"
"""Installed packages announce models under this entry point group: `Architecture = "package.module:FAMILY"`."""

_USES = ("ForCausalLM", "ForMaskedLM", "ForSequenceClassification", "Model")
"""What names of architectures end with."""

_FAMILIES: dict[str, Family] = {
    "LlamaForCausalLM": llama.FAMILY,
    "MistralForCausalLM": mistral.FAMILY,
    "Qwen2ForCausalLM": qwen2.FAMILY,
    "Qwen3ForCausalLM": qwen3.FAMILY,
    "LlamaModel": replace(llama.FAMILY, use="embed"),
    "MistralModel": replace(mistral.FAMILY, use="embed"),
    "Qwen2Model": replace(qwen2.FAMILY, use="embed"),
    "Qwen3Model": replace(qwen3.FAMILY, use="embed"),
    "LlamaForSequenceClassification": replace(llama.FAMILY, use="classify"),
    "MistralForSequenceClassification": replace(mistral.FAMILY, use="classify"),
    "Qwen2ForSequenceClassification": replace(qwen2.FAMILY, use="classify"),
    "Qwen3ForSequenceClassification": replace(qwen3.FAMILY, use="classify"),
    "BertModel": bert.FAMILY,
    "BertForMaskedLM": bert.FAMILY,
    "BertForSequenceClassification": bert.CLASSIFIER,
    "DistilBertModel": distilbert.FAMILY,
    "DistilBertForMaskedLM": distilbert.FAMILY,
    "DistilBertForSequenceClassification": distilbert.CLASSIFIER,
    "ModernBertModel": modernbert.FAMILY,
    "ModernBertForMaskedLM": modernbert.FAMILY,
    "ModernBertForSequenceClassification": modernbert.CLASSIFIER,
    "RobertaModel": roberta.FAMILY,
    "RobertaForMaskedLM": roberta.FAMILY,
    "RobertaForSequenceClassification": roberta.CLASSIFIER,
    "XLMRobertaModel": roberta.FAMILY,
    "XLMRobertaForMaskedLM": roberta.FAMILY,
    "XLMRobertaForSequenceClassification": roberta.CLASSIFIER,
}


def register(architecture: str, family: Family) -> None:
    """Make a model known to this process, or replace one.

    The engine may run in a process of its own, which does not see this call; a package that others install uses the
    entry point group `jaxllm.models` instead, which every process reads.
    """
    _FAMILIES[architecture] = family


def known_architectures() -> list[str]:
    """All names that `lookup` finds, sorted."""
    return sorted({*_FAMILIES, *(entry.name for entry in entry_points(group=ENTRY_POINTS))})


def lookup(architecture: str) -> Family:
    """The family of an architecture. Raises `ModelError`, which names the families there are."""
    if architecture in _FAMILIES:
        return _FAMILIES[architecture]
    for entry in entry_points(group=ENTRY_POINTS):
        if entry.name == architecture:
            family = entry.load()
            if not isinstance(family, Family):
                raise ModelError(f"entry point {entry.value!r} for {architecture!r} is not a jaxllm Family")
            return family
    raise ModelError(_unknown(architecture))


def known_families() -> list[str]:
    """What is before the use in the names of `known_architectures`: Llama, Qwen3, ..."""
    return sorted({_split(name)[0] for name in known_architectures()}, key=str.lower)


def _split(architecture: str) -> tuple[str, str]:
    """Family and use: ("Llama", "ForCausalLM")."""
    use = next((use for use in _USES if architecture.endswith(use) and architecture != use), "")
    return architecture.removesuffix(use), use


def _unknown(architecture: str) -> str:
    """Why a name is not known, and what is."""
    family, _ = _split(architecture)
    families = known_families()
    if family in families:
        known = [name for name in known_architectures() if _split(name)[0] == family]
        return f"unknown architecture {architecture!r}: of {family} there are {', '.join(known)}"
    # Neighbours in name only, such as Qwen3 for Qwen3Moe, are different models: a suggestion is for slips of the pen.
    close = get_close_matches(architecture, known_architectures(), n=1, cutoff=0.96)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return (
        f"unknown architecture {architecture!r}: {family} is not supported{hint or ';'} "
        f"families that are: {', '.join(families)}"
    )
