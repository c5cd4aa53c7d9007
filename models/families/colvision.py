"""ColPali (arXiv 2407.01449) and ColQwen2: a short vector of each token, of pages as pictures and of questions."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig
from jaxllm.models.families import gemma_images, qwen_vl
from jaxllm.models.families.family import Family
from jaxllm.models.families.grid_towers import VISUAL

_PROJECTION = "embedding_proj_layer."


def _with_vectors(family: Family, renamed: Mapping[str, str]) -> Family:
    """The family as the part `vlm` of such a model; `renamed` are parts of it, without that name."""
    return replace(
        family,
        read_config=_part_of(family.read_config),
        renamed={f"vlm.{theirs}": ours for theirs, ours in renamed.items()},
        use="token_embed",
        token_head=_PROJECTION,
        other_heads=(*family.other_heads, _PROJECTION, "vlm.lm_head."),
    )


def _read_pali(part: ConfigFile, architecture: str) -> ModelConfig:
    """PaliGemma's configuration: all tokens of a page or a question see one another, also where there is no image."""
    config = gemma_images.read_paligemma(part, architecture)
    assert config.tower is not None
    layers = tuple(layer.attending(sees_spans=False) for layer in config.layers)
    return replace(config, layers=layers, tower=replace(config.tower, spans=None)).bidirectional()


def _part_of(read: Callable[[ConfigFile, str], ModelConfig]) -> Callable[[ConfigFile, str], ModelConfig]:
    def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
        file.ignore("embedding_dim", "initializer_range")
        part = file.section("vlm_config")
        if part is None:
            raise file.wrong("vlm_config", "an object, the configuration of the model that sees")
        return read(part, architecture)

    return read_config


QWEN2 = _with_vectors(
    qwen_vl.QWEN2,
    {
        "model.": "model.", "model.language_model.": "model.", "language_model.": "model.", "lm_head.": "lm_head.",
        "model.visual.": f"{VISUAL}.", "visual.": f"{VISUAL}.",
    },
)  # fmt: skip
PALI = _with_vectors(
    replace(gemma_images.PALIGEMMA, read_config=_read_pali),
    {
        **gemma_images.PARTS,
        "language_model.": "model.",
        "language_model.lm_head.": "lm_head.",
        "vision_tower.": "vision_tower.",
        "vision_tower.vision_model.": "vision_tower.",
        "multi_modal_projector.": "multi_modal_projector.",
    },
)
