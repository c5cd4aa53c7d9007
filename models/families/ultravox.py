"""Ultravox (github.com/fixie-ai/ultravox, versions 0.3 to 0.6): Whisper's encoder before Llama, Qwen3 or Mistral.

Eight positions of sound in a row become a row of the language model. The parts are checkpoints of their own, see
`jaxllm.models.checkpoint.joined_parts`. transformers does not have the family.
"""

from dataclasses import replace

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.hearing import hearing_family
from jaxllm.models.layers.activation import read_activation
from jaxllm.models.towers.sound import RowsPlan

GATED = "swiglu"
_ADAPTERS = ("text_model_lora_config", "audio_model_lora_config")


def _rows(file: ConfigFile, config: ModelConfig) -> RowsPlan:
    """Positions in a row, two products, and two norms; up to version 0.4.1 the second norm was after both."""
    file.expect(audio_latency_block_size=None, num_projector_layers=0)
    for name in _ADAPTERS:
        section = file.section(name)
        if section is not None:
            section.expect(r=0)
            section.ignore("*")
    # Of training, and of who writes prompts.
    file.ignore(
        "audio_model_id", "text_model_id", "norm_init", "ignore_index", "custom_pipelines", "vocab_size",
        "llm_only_training", "loss_*", "adapter_type",
    )  # fmt: skip
    is_gated = file.text("projector_act", GATED) == GATED
    inner = file.integer("hidden_size", 4096)
    if is_gated and inner % 2:
        raise file.wrong("hidden_size", "even: half of it is the gate")
    return RowsPlan(
        file.integer("audio_token_index", minimum=0),
        windows="cut",
        positions_per_row=file.integer("stack_factor", 8),
        is_mean=False,
        activation="silu" if is_gated else read_activation(file, "projector_act", GATED),
        bias=False,
        inner_size=inner,
        is_gated=is_gated,
        second_norm="before" if file.boolean("projector_ln_mid", False) else "after",
        fills_up=True,
    )


_PROJECTOR = {
    "sound.first_norm": "multi_modal_projector.ln_pre",
    "sound.projector": "multi_modal_projector.linear_1",
    "sound.second": "multi_modal_projector.linear_2",
}


def _projector(config: ModelConfig) -> dict[str, str]:
    assert config.sound is not None
    assert config.sound.rows is not None
    name = "ln_mid" if config.sound.rows.second_norm == "before" else "ln_post"
    return {**_PROJECTOR, "sound.second_norm": f"multi_modal_projector.{name}"}


FAMILY = replace(
    hearing_family(
        "llama",
        _rows,
        _projector,
        renamed={"model.encoder.": "audio_tower.", "audio_tower.model.encoder.": "audio_tower."},
        # The decoder of Whisper.
        unused=("model.decoder.", "proj_out."),
    ),
    like="Whisper",
)
