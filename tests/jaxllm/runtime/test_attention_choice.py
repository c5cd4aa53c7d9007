"""Which attention is chosen for which device, be it there or not."""

from dataclasses import dataclass, replace

import pytest

from jaxllm.errors import ConfigError
from jaxllm.runtime.attention import AttentionShape, choose_attention

LLAMA = AttentionShape(group=4, head_size=128, page_size=16, dtype="bfloat16")


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
        (H100, replace(LLAMA, dtype="float32"), "xla"),
        (H100, replace(LLAMA, head_size=72), "xla"),
        (H100, replace(LLAMA, group=128), "xla"),
        (A100, LLAMA, "xla"),
        (B200, LLAMA, "xla"),
        (V6E, LLAMA, "tpu"),
        (CPU, LLAMA, "cpu"),
        (CPU, replace(LLAMA, head_size=72), "xla"),
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
    ],
)
def test_what_cannot_be_is_refused(asked: str, device: Device, shape: AttentionShape, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        choose_attention(asked, device, shape)


@pytest.mark.parametrize("asked", ["xla", "reference"])
def test_what_runs_everywhere_is_taken_as_asked(asked: str) -> None:
    assert {choose_attention(asked, device, LLAMA) for device in (H100, A100, CPU, V6E)} == {asked}
