"""The audio model of Phi-4 multimodal in checkpoints: transformers' format, and the authors' own."""

from dataclasses import dataclass

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import ConvolutionAsMatrix, Fused, Source, TapsAsMatrix
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.family import Names
from jaxllm.models.layers.activation import read_activation
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.towers.conformer import ConformerPlan
from jaxllm.models.towers.sound import RowsPlan

MOST_POSITIONS = 500
"""Positions that see one another: longer sound is cut so by the code of both formats."""

_NORM = NormPlan(kind="layer", eps=1e-5, bias=True)
_SOUND = "model.embed_tokens_extend.audio_embed"


@dataclass(frozen=True)
class SoundNames:
    """What a format calls the parts of a layer whose names differ, and the products after the layers."""

    up: str = "gate_up_proj"
    down: str = "down_proj"
    attention: str = "{}_proj"
    output: str = "o_proj"
    projector: str = "up_proj_for_speech"
    second: str = "down_proj_for_speech"


PUBLISHED_SOUND = SoundNames(
    "net.0.linear", "net.2", "linear_{}", "linear_out", "audio_projection.speech.0", "audio_projection.speech.2"
)


def read_sound(file: ConfigFile) -> ConformerPlan:
    """The plan of `audio_config`. Raises `ModelError` for what the published model does not have."""
    audio = file.reading(
        hidden_size=1024, intermediate_size=1536, num_blocks=24, num_attention_heads=16, activation="swish",
        chunk_size=-1, depthwise_multiplier=1, kernel_size=3, conv_activation="swish", input_size=80,
        conv_glu_type="swish", time_reduction=8, bias_max_distance=1000, bias_symmetric=False, nemo_activation="relu",
        nemo_conv_channels=1024, downsample_rate=1, audio_token_id=200011, ext_pw_out_channel=1024,
        depthwise_separable_out_channel=1024,
    )  # fmt: skip
    size, heads = audio.integer("hidden_size"), audio.integer("num_attention_heads")
    if size % heads:
        raise audio.wrong("hidden_size", f"a multiple of num_attention_heads={heads}")
    # The convolution of a layer is added to its input. Positions would else see only some others.
    audio.expect(
        ext_pw_out_channel=size, depthwise_separable_out_channel=size, depthwise_multiplier=1, chunk_size=-1,
        bias_symmetric=False, downsample_rate=1,
    )  # fmt: skip
    audio.ignore("model_type", "left_chunk", "dropout_rate", "initializer_range", "feature_layer", "nemo_final_size")
    reduction = audio.integer("time_reduction", minimum=2)
    if reduction & (reduction - 1):
        raise audio.wrong("time_reduction", "a power of two")
    return ConformerPlan(
        hidden_size=size,
        intermediate_size=audio.integer("intermediate_size"),
        num_layers=audio.integer("num_blocks"),
        num_heads=heads,
        num_bins=audio.integer("input_size"),
        num_keys=MOST_POSITIONS,
        activation=read_activation(audio, "activation", "swish"),
        is_gated=True,
        norm=_NORM,
        reductions=reduction.bit_length() - 1,
        channels=audio.integer("nemo_conv_channels"),
        kernel=audio.integer("kernel_size"),
        max_distance=audio.integer("bias_max_distance"),
        conv_activation=read_activation(audio, "conv_activation", "swish"),
        gate_activation=read_activation(audio, "conv_glu_type", "swish"),
        first_activation=read_activation(audio, "nemo_activation", "relu"),
        rows=RowsPlan(
            audio.integer("audio_token_id", minimum=0),
            windows="led",
            positions_per_row=1,
            is_mean=False,
            fills_up=True,
        ),
    )


_SPELLED = {
    "hidden_size": "attention_dim",
    "num_attention_heads": "attention_heads",
    "intermediate_size": "linear_units",
    "depthwise_separable_out_channel": "depthwise_seperable_out_channel",
}
"""What the authors call sizes that transformers has under another name."""


def read_published_sound(file: ConfigFile, layer: ConfigFile) -> ConformerPlan:
    """The plan of `audio_processor` and `embd_layer`, of the authors' format. Raises `ModelError` likewise."""
    embedded = layer.section("audio_embd_layer") or ConfigFile({}, file.source)
    embedded.expect(
        embedding_cls="audio", projection_cls="mlp", downsample_rate=1, use_qformer=False, use_conv_downsample=False
    )
    embedded.ignore("compression_rate", "enable_gradient_checkpointing")
    processor = file.section("audio_processor") or ConfigFile({}, file.source)
    processor.expect(name="cascades")
    audio = processor.section("config") or ConfigFile({}, file.source)
    audio.expect(
        input_layer="nemo_conv", causal=True, bias_in_glu=True, cnn_layer_norm=True, batch_norm=False,
        ext_pw_kernel_size=1,
    )  # fmt: skip
    audio.ignore("activation_checkpointing", "encoder_embedding_config")
    distances = audio.section("relative_attention_bias_args") or ConfigFile({}, file.source)
    distances.expect(type="t5", t5_bias_symmetric=False)
    convolutions = audio.section("nemo_conv_settings") or ConfigFile({}, file.source)
    convolutions.expect(is_causal=False, subsampling="dw_striding", conv_activation="relu")
    convolutions.ignore("subsampling_factor", "feat_in", "feat_out")
    return read_sound(
        audio.reading(
            _SPELLED,
            bias_max_distance=distances.integer("t5_bias_max_distance", 500),
            nemo_conv_channels=convolutions.integer("conv_channels", 1024),
        )
    )


def sound_names(config: ModelConfig, of: SoundNames | None = None) -> Names:
    """Names of the tensors of the audio model."""
    of, plan = of or SoundNames(), config.sound
    assert isinstance(plan, ConformerPlan)
    encoder, module = f"{_SOUND}.encoder", "sound.encoder"
    layer, own = f"{encoder}.encoders.*", f"{module}.layers.*"
    inner = (plan.intermediate_size,) * 2
    point = TapsAsMatrix(1)
    found: dict[str, str | Source] = {
        f"{module}.scaling": f"{encoder}.encoder_embedding",
        f"{module}.first": Source(f"{encoder}.embed.conv.0", ConvolutionAsMatrix(1)),
        f"{module}.out": f"{encoder}.embed.out",
        f"{module}.distances": f"{encoder}.relative_attention_bias_layer.bias_values",
        f"{own}.attention_norm": f"{layer}.layer_norm_att",
        f"{own}.attention.output": f"{layer}.self_attn.{of.output}",
        f"{own}.convolution_norm": f"{layer}.conv.layer_norm",
        f"{own}.convolution.up": Source(f"{layer}.conv.glu.ext_pw_conv_1d", point),
        f"{own}.convolution.gate": f"{layer}.conv.glu",
        f"{own}.convolution.depthwise": f"{layer}.conv.dw_sep_conv_1d.dw_conv",
        f"{own}.convolution.inner": Source(f"{layer}.conv.dw_sep_conv_1d.pw_conv", point),
        f"{own}.convolution.output": Source(f"{layer}.conv.ext_pw_conv_1d", point),
        f"{own}.norm": f"{layer}.layer_norm",
        "sound.projector": f"{_SOUND}.{of.projector}",
        "sound.second": f"{_SOUND}.{of.second}",
    }
    for part in ("query", "key", "value"):
        found[f"{own}.attention.{part}"] = f"{layer}.self_attn.{of.attention.format(part[0])}"
    for part, name in (("first", "feed_forward_in"), ("last", "feed_forward_out")):
        found[f"{own}.{part}_norm"] = f"{layer}.{name}.layer_norm"
        found[f"{own}.{part}_mlp.up"] = Source(f"{layer}.{name}.{of.up}", Fused(inner, 0))
        found[f"{own}.{part}_mlp.gate"] = Source(f"{layer}.{name}.{of.up}", Fused(inner, 1))
        found[f"{own}.{part}_mlp.down"] = f"{layer}.{name}.{of.down}"
    # A convolution of each channel, a product, and an activation, one after the other.
    halves = range(plan.reductions - 1)
    found[f"{module}.halves.*.depthwise"] = Source(f"{encoder}.embed.conv.*", layers=[2 + 3 * each for each in halves])
    found[f"{module}.halves.*.product"] = Source(
        f"{encoder}.embed.conv.*", ConvolutionAsMatrix(None), layers=[3 + 3 * each for each in halves]
    )
    return found
