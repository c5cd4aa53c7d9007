"""What a configuration needs that is not here, in the words of docs/add-a-model.md."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.model_config import IRRELEVANT, config_file, read_config
from jaxllm.models.errors import ModelError
from jaxllm.models.families import registry
from jaxllm.models.families.absent import ABSENT
from jaxllm.models.families.family import Family
from jaxllm.models.families.naming import architecture_of

PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "rotary embedding": ("rope*", "rotary*", "*_theta", "partial_rotary*", "no_rope*"),
    "recurrence": ("linear_*", "mamba*", "*ssm*", "*conv*", "*delta*", "time_step*", "lru*"),
    "head norms": ("*qk_norm*", "*qk_layernorm*", "*query_norm*", "*key_norm*"),
    "attention": ("index_*", "kv_*", "q_*", "qk_*", "v_*", "*attn*", "*attention*", "*heads*", "head_*", "*_head_dim",
                  "*window*", "*sink*", "layer_types", "gating"),
    "experts": ("*expert*", "*moe*", "*router*", "*topk*", "*top_k*", "*_group", "routed_*", "scoring_func"),
    "norms": ("*norm*", "*_eps"),
    "MLP": ("*mlp*", "*intermediate*", "*ffn*", "*activation*", "hidden_act"),
    "blocks": ("hc_*", "*residual*", "*parallel*", "*loop*", "*recurrent*", "*layers*"),
    "embedding and output": ("*embed*", "*logit*", "*vocab*", "*softcap*", "*position*", "tie_*", "*ngram*"),
}  # fmt: skip
"""The parts of a layer plan, and how options are called that belong to them; the first that fits counts."""

OTHER: Final = "other options"


@dataclass(frozen=True)
class Gaps:
    """What an architecture's configuration needs. Nothing, if `nearest` is the architecture and nothing is `unread`.

    `reason` is that of the table of decoders which are not here. `nearest` is the architecture whose family reads most
    of the file: itself, if it is here; `problem` is what that family, or the checkpoint, says against the file.
    `unread` are options that it does not know, by the part of a layer plan they seem to belong to. `has_tower` says
    that there are parts for images or sound alongside.
    """

    architecture: str
    reason: str | None = None
    nearest: str | None = None
    problem: str | None = None
    unread: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    has_tower: bool = False

    @property
    def is_known(self) -> bool:
        """Whether the architecture is here."""
        return self.nearest == self.architecture

    @property
    def are_none(self) -> bool:
        """Whether the configuration needs nothing that is not here."""
        return self.is_known and self.problem is None and not self.unread


def find_gaps(folder: Path) -> Gaps:
    """What the config.json in `folder` needs. Raises `ModelError` for a file that is not a configuration."""
    file = config_file(folder)
    architecture = _architecture(file)
    if architecture in registry.known_architectures():
        try:
            read_config(folder)
        except ModelError as error:
            _, unread = _reading(registry.lookup(architecture), file.values, architecture)
            return Gaps(architecture, nearest=architecture, problem=str(error), unread=_by_part(unread))
        return Gaps(architecture, nearest=architecture)
    text = file.values.get("text_config")
    values = text if isinstance(text, dict) and text else file.values
    nearest, problem, unread = _nearest(values, architecture)
    return Gaps(
        architecture=architecture,
        reason=ABSENT.get(architecture),
        nearest=nearest,
        problem=problem,
        unread=_by_part(unread),
        has_tower=values is text or any(file.has(key) for key in ("vision_config", "audio_config")),
    )


def _architecture(file: ConfigFile) -> str:
    """The name in the file, or the type of a model that has none and is not known."""
    try:
        return architecture_of(file)
    except ModelError:
        kind = file.values.get("model_type")
        if not file.values.get("architectures") and isinstance(kind, str):
            return kind
        raise


def _nearest(values: Mapping[str, Any], architecture: str) -> tuple[str, str | None, dict[str, Any]]:
    """The decoder whose family reads most of these options; of several, the one whose name is most alike.

    Of a family that refuses the file, options that it did not come to count as unread; those of them that are given are
    the ones that no other family reads either.
    """
    found = []
    for name, family in registry.families().items():
        if family.use == "generate" and name.endswith(("ForCausalLM", "LMHeadModel")):
            problem, unread = _reading(family, values, name)
            likeness = SequenceMatcher(None, name, architecture).ratio()
            found.append((len(unread) + (problem is not None), -likeness, name, problem, unread))
    _, _, name, problem, unread = min(found, key=lambda each: each[:3])
    if problem is None:
        return name, None, unread
    of_nobody = set(unread).intersection(*(options for *_, options in found))
    return name, problem, {key: value for key, value in unread.items() if key in of_nobody}


def _reading(family: Family, values: Mapping[str, Any], architecture: str) -> tuple[str | None, dict[str, Any]]:
    """What a family says against a file of these options, if anything, and those that it does not read."""
    file, problem = ConfigFile(values), None
    try:
        family.read_config(file, architecture)
    except ModelError as error:
        problem = str(error)
    return problem, dict(file.unused((*IRRELEVANT, "quantization_config")))


def _by_part(unread: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The same options, by the part of the plan."""
    parts: dict[str, dict[str, Any]] = {}
    for key, value in unread.items():
        parts.setdefault(_part(key), {})[key] = value
    return parts


def _part(key: str) -> str:
    """The part of an option; of one in a section, that of its name or of the section's."""
    for name in reversed(key.split(".")):
        fitting: Iterator[str] = (
            part for part, names in PARTS.items() if any(fnmatchcase(name, each) for each in names)
        )
        found = next(fitting, None)
        if found is not None:
            return found
    return OTHER
