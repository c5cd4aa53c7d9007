"""Phi-4 multimodal as its authors publish it: the model of transformers under other names, with adapters among them."""

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load, save_file
from transformers import Phi4MultimodalProcessor

from tests.e2e.images.families.case import PartsProcessor, SeeingCase
from tests.e2e.images.families.phi4_multimodal import PATCH, SIDE, SIZE, Phi4MultimodalForCausalLM, Pixels, config
from tests.e2e.images.families.phi4_multimodal import TOKENS as NEWER

TOKENS = {"image_token": "<|endoftext10|>", "audio_token": "<|endoftext11|>"}
ADAPTED = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")
IMAGES = "model.embed_tokens_extend.image_embed"
NAMES = {
    f"{IMAGES}.sub_img_feature_extensor": f"{IMAGES}.sub_GN",
    f"{IMAGES}.global_img_feature_extensor": f"{IMAGES}.glb_GN",
    f"{IMAGES}.img_projection_up": f"{IMAGES}.img_projection.0",
    f"{IMAGES}.img_projection_down": f"{IMAGES}.img_projection.2",
}
"""Beginnings of the published names, by those of transformers."""
SOUND = {
    r"\.feed_forward_(in|out)\.gate_up_proj\.": r".feed_forward_\1.net.0.linear.",
    r"\.feed_forward_(in|out)\.down_proj\.": r".feed_forward_\1.net.2.",
    r"(encoders\.\d+\.self_attn)\.([qkv])_proj\.": r"\1.linear_\2.",
    r"(encoders\.\d+\.self_attn)\.o_proj\.": r"\1.linear_out.",
    r"\.up_proj_for_(vision_)?speech\.": r".audio_projection.\1speech.0.",
    r"\.down_proj_for_(vision_)?speech\.": r".audio_projection.\1speech.2.",
}
"""Parts of published names of the audio model, by those of transformers."""
AUDIO = {
    "attention_dim": "hidden_size", "attention_heads": "num_attention_heads", "linear_units": "intermediate_size",
    "num_blocks": "num_blocks", "ext_pw_out_channel": "ext_pw_out_channel", "input_size": "input_size",
    "depthwise_seperable_out_channel": "depthwise_separable_out_channel", "kernel_size": "kernel_size",
    "depthwise_multiplier": "depthwise_multiplier", "time_reduction": "time_reduction", "chunk_size": "chunk_size",
    "left_chunk": "left_chunk", "activation": "activation", "conv_activation": "conv_activation",
    "conv_glu_type": "conv_glu_type", "dropout_rate": "dropout_rate",
}  # fmt: skip
"""Fields of the published audio model, and those of transformers that have their values."""
EMBEDDED = {
    "embedding_cls": "image_audio",
    "audio_embd_layer": {
        "embedding_cls": "audio", "compression_rate": 8, "downsample_rate": 1, "enable_gradient_checkpointing": True,
        "projection_cls": "mlp", "use_conv_downsample": False, "use_qformer": False,
    },
    "image_embd_layer": {
        "crop_size": SIDE, "embedding_cls": "tune_image", "enable_gradient_checkpointing": True,
        "hd_transform_order": "sub_glb", "image_token_compression_cls": "avg_pool_2d", "projection_cls": "mlp",
        "use_hd_transform": True, "with_learnable_separator": True,
    },
}  # fmt: skip


def published(name: str) -> str:
    """The name of a tensor of transformers in published files."""
    old = next((old for old in NAMES if name.startswith(old)), "")
    name = NAMES.get(old, "") + name.removeprefix(old)
    if ".audio_embed." in name:
        for new, wanted in SOUND.items():
            name = re.sub(new, wanted, name)
        return name.replace("vision_speech", "vision")
    module, _, end = name.rpartition(".")
    is_adapted = name.startswith("model.layers.") and module.endswith(ADAPTED)
    return f"{module}.base_layer.{end}" if is_adapted else name


def model(config: Any) -> Phi4MultimodalForCausalLM:
    """A model that is written as published."""
    made = Phi4MultimodalForCausalLM(config)
    made.save_pretrained = partial(save, made)
    return made


def save(made: Phi4MultimodalForCausalLM, folder: Path) -> None:
    """Write the files of a checkpoint."""
    Phi4MultimodalForCausalLM.save_pretrained(made, folder)
    path = folder / "config.json"
    given = json.loads(path.read_text())
    found = {name: value for name, value in given.items() if name not in ("audio_config", "rope_parameters")}
    audio = given["audio_config"]
    hears = {
        **{name: audio[ours] for name, ours in AUDIO.items()}, "activation_checkpointing": "", "bias_in_glu": True,
        "causal": True, "cnn_layer_norm": True, "encoder_embedding_config": {"input_size": audio["input_size"]},
        "ext_pw_kernel_size": 1, "input_layer": "nemo_conv", "audio_token_id": audio["audio_token_id"],
        "nemo_conv_settings": {"conv_channels": audio["nemo_conv_channels"]},
        "relative_attention_bias_args": {"t5_bias_max_distance": audio["bias_max_distance"], "type": "t5"},
    }  # fmt: skip
    lora = {"dp": 0.0, "layer": "layers.*self_attn.*", "lora_alpha": 512, "r": 256}
    path.write_text(
        json.dumps(
            found | {"architectures": ["Phi4MMForCausalLM"], "model_type": "phi4mm", "embd_layer": EMBEDDED,
                     "vision_lora": lora, "speech_lora": lora, "audio_processor": {"config": hears, "name": "cascades"}}
        )
    )  # fmt: skip
    weights = folder / "model.safetensors"
    tensors = {published(name): value for name, value in load(weights.read_bytes()).items()}
    name = "model.layers.0.mlp.down_proj.lora_{}.vision.weight"
    save_file(tensors | {name.format(part): np.ones((4, 4), np.float32) for part in "AB"}, weights)


class Processor(PartsProcessor):
    """With the files of the authors' own code."""

    def save_pretrained(self, folder: Path) -> None:
        """Write them."""
        super().save_pretrained(folder)
        (folder / "processor_config.json").unlink()
        fields = {
            **self.images.fields, "processor_class": "Phi4MMProcessor", "audio_compression_rate": 8,
            "feature_extractor_type": "Phi4MMAudioFeatureExtractor",
        }  # fmt: skip
        (folder / "preprocessor_config.json").write_text(json.dumps(fields))


def processor(tokenizer: Any) -> Processor:
    pixels = Pixels(image_processor_type="Phi4MMImageProcessor", size=SIZE, dynamic_hd=6, patch_size=PATCH)
    return Processor(Phi4MultimodalProcessor, pixels, tokenizer, TOKENS)


def with_newer_tokens(vocab_size: int, ids: Any) -> Any:
    """The configuration of the same model with the tokens that stand for images and sound here."""
    return config(vocab_size, {NEWER[name]: ids[token] for name, token in TOKENS.items()})


CASES = {
    "phi-4 published": SeeingCase(
        model,
        with_newer_tokens,
        processor,
        tuple(TOKENS.values()),
        TOKENS["image_token"],
        sizes=((70, 90), (200, 60)),
        has_answers=False,  # See test_default_adapters.py.
    )
}
