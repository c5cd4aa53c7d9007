"""Which architectures are known, by the name that checkpoints give in `architectures`."""

from dataclasses import replace
from importlib.metadata import entry_points

from jaxllm.models import bert, distilbert, llama, mistral, modernbert, qwen2, qwen3, roberta
from jaxllm.models.errors import ModelError, nearest
from jaxllm.models.family import Family

ENTRY_POINTS = "jaxllm.models"
"""Installed packages announce models under this entry point group: `Architecture = "package.module:FAMILY"`."""

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
    """The family of an architecture. Raises `ModelError` naming the nearest known ones."""
    if architecture in _FAMILIES:
        return _FAMILIES[architecture]
    for entry in entry_points(group=ENTRY_POINTS):
        if entry.name == architecture:
            family = entry.load()
            if not isinstance(family, Family):
                raise ModelError(f"entry point {entry.value!r} for {architecture!r} is not a jaxllm Family")
            return family
    known = known_architectures()
    raise ModelError(f"unknown architecture {architecture!r}{nearest(architecture, known)} (known: {', '.join(known)})")
