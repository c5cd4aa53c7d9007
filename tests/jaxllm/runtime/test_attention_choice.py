"""Which attention is chosen for which device, be it there or not."""

from dataclasses import dataclass, replace

import pytest

from jaxllm.errors import ConfigError
from jaxllm.pallas_kernels.latent_attention import LatentSizes
from jaxllm.runtime.attention import AttentionShape, choose_attention

LLAMA = AttentionShape(group=4, head_size=128, page_size=16, dtype="bfloat16")
BY_TOKEN = replace(LLAMA, dtype="int8", dynamic_scales=True)
DEEPSEEK = replace(LLAMA, group=16, head_size=64, latent=LatentSizes(512, 64))


@dataclass(frozen=True)
class Device:
    """What the choice reads of a `jax.Device`."""

    platform: str
    device_kind: str
    compute_capability: str = ""


H100 = Device("gpu", "NVIDIA H100 80GB HBM3", "9.0")
A100 = Device("gpu", "NVIDIA A100-SXM4-80GB", "8.0")
B200 = Device("gpu", "NVIDIA B200", "10.0")
CPU, V6E = Device("cpu", "cpu"), Device("tpu", "TPU v6 lite")


@pytest.mark.parametrize(
    ("device", "shape", "expected"),
    [
        (H100, LLAMA, "gpu"),
        (H100, replace(LLAMA, dtype="float16"), "gpu"),
        (H100, replace(LLAMA, dtype="float8_e4m3fn"), "gpu"),
        (H100, replace(LLAMA, dtype="int8"), "gpu"),
        (H100, BY_TOKEN, "xla"),
        (CPU, BY_TOKEN, "cpu"),
        (V6E, replace(LLAMA, dtype="int8"), "tpu"),
        (H100, replace(LLAMA, dtype="float32"), "xla"),
        (H100, replace(LLAMA, head_size=72), "xla"),
        (H100, replace(LLAMA, group=128), "xla"),
        (A100, LLAMA, "xla"),
        (B200, LLAMA, "xla"),
        (V6E, LLAMA, "tpu"),
        (CPU, LLAMA, "cpu"),
        (CPU, replace(LLAMA, head_size=72), "xla"),
        (CPU, DEEPSEEK, "cpu"),
        (CPU, replace(DEEPSEEK, dtype="float16"), "xla"),
        (CPU, replace(DEEPSEEK, latent=LatentSizes(512, 40)), "xla"),
        (H100, DEEPSEEK, "xla"),
        (V6E, DEEPSEEK, "tpu"),
        (V6E, replace(DEEPSEEK, dtype="float8_e4m3fn"), "xla"),
        (CPU, replace(DEEPSEEK, dtype="float8_e4m3fn"), "xla"),
        (V6E, replace(DEEPSEEK, dtype="float16"), "xla"),
        (Device("rocm", "MI300X"), LLAMA, "xla"),
    ],
)
def test_auto(device: Device, shape: AttentionShape, expected: str) -> None:
    assert choose_attention("auto", device, shape) == expected


@pytest.mark.parametrize(
    ("asked", "device", "shape", "message"),
    [
        ("gpu", A100, LLAMA, "compute capability 9"),
        ("gpu", H100, replace(LLAMA, dtype="float32"), "KV cache of float32"),
        ("gpu", CPU, LLAMA, "needs a GPU; this is a CPU"),
        ("cpu", CPU, replace(LLAMA, page_size=8), "multiples of"),
        ("cpu", CPU, replace(DEEPSEEK, page_size=8), "these are 512, 64 and 8, and bfloat16"),
        ("gpu", H100, DEEPSEEK, "no kernel of latent attention"),
        ("gpu", H100, BY_TOKEN, "attention_backend='gpu' has no scales by token and head"),
        ("auto", V6E, BY_TOKEN, "on TPUs the checkpoint must have scales"),
        ("auto", CPU, replace(DEEPSEEK, dtype="int8", dynamic_scales=True), "a latent and its rotary part"),
    ],
)
def test_what_cannot_be_is_refused(asked: str, device: Device, shape: AttentionShape, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        choose_attention(asked, device, shape)


@pytest.mark.parametrize("asked", ["xla", "reference"])
def test_what_runs_everywhere_is_taken_as_asked(asked: str) -> None:
    assert {choose_attention(asked, device, LLAMA) for device in (H100, A100, CPU, V6E)} == {asked}
