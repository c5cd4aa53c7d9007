"""Which attention is chosen for which device, be it there or not."""

from dataclasses import dataclass, replace

import pytest

from jaxllm.errors import ConfigError
from jaxllm.executor.kernels.attention import ATTENTION, AttentionShape
from jaxllm.executor.kernels.select import select_kernel
from jaxllm.pallas_kernels.latent_attention import LatentSizes
from jaxllm.pallas_kernels.paged_attention.triton import options

LLAMA = AttentionShape(group=4, head_size=128, page_size=16, dtype="bfloat16")
BY_TOKEN = replace(LLAMA, dtype="int8", dynamic_scales=True)
GEMMA = replace(LLAMA, spans=True)
DEEPSEEK = replace(LLAMA, group=16, head_size=64, latent=LatentSizes(512, 64))


@dataclass(frozen=True)
class Device:
    """The attributes of a `jax.Device` that the choice reads."""

    platform: str
    device_kind: str
    compute_capability: str = ""


H100 = Device("gpu", "NVIDIA H100 80GB HBM3", "9.0")
A100 = Device("gpu", "NVIDIA A100-SXM4-80GB", "8.0")
L4, T4 = Device("gpu", "NVIDIA L4", "8.9"), Device("gpu", "Tesla T4", "7.5")
MI300X = Device("gpu", "AMD Instinct MI300X", "gfx942")
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
        (H100, replace(LLAMA, head_size=72), "triton"),
        (H100, replace(LLAMA, group=128), "triton"),
        (A100, LLAMA, "triton"),
        (A100, replace(LLAMA, head_size=80, dtype="float16"), "triton"),
        (A100, replace(LLAMA, dtype="float32"), "xla"),
        (A100, replace(LLAMA, dtype="int8"), "xla"),
        (A100, BY_TOKEN, "xla"),
        (A100, replace(LLAMA, head_size=512), "xla"),
        (A100, DEEPSEEK, "xla"),
        (B200, LLAMA, "triton"),
        (L4, LLAMA, "triton"),
        (T4, LLAMA, "xla"),
        (MI300X, LLAMA, "xla"),
        (V6E, LLAMA, "tpu"),
        (CPU, LLAMA, "cpu"),
        (CPU, replace(LLAMA, head_size=72), "xla"),
        (CPU, DEEPSEEK, "cpu"),
        (CPU, replace(DEEPSEEK, dtype="float16"), "xla"),
        (CPU, replace(DEEPSEEK, latent=LatentSizes(512, 40)), "xla"),
        (CPU, replace(DEEPSEEK, latent=LatentSizes(512, 64, 128)), "cpu"),
        (CPU, replace(DEEPSEEK, latent_kinds=((512, 64, 128), (48, 40, 0))), "xla"),
        (V6E, replace(DEEPSEEK, latent=LatentSizes(640, 64), latent_kinds=((640, 64, 0), (512, 64, 128))), "tpu"),
        (V6E, replace(DEEPSEEK, latent=LatentSizes(600, 40), latent_kinds=((600, 40, 0), (512, 64, 64))), "xla"),
        *((device, replace(LLAMA, index=128), "xla") for device in (H100, V6E)),
        (CPU, replace(LLAMA, index=128), "cpu"),
        (CPU, replace(LLAMA, index=8), "xla"),
        (V6E, replace(DEEPSEEK, latent_features=frozenset({"sinks", "windows"})), "tpu"),
        (CPU, replace(DEEPSEEK, latent_features=frozenset({"an index of groups of keys"})), "cpu"),
        (V6E, replace(DEEPSEEK, latent_features=frozenset({"an index of groups of keys"})), "xla"),
        (H100, DEEPSEEK, "xla"),
        (V6E, DEEPSEEK, "tpu"),
        (V6E, replace(DEEPSEEK, dtype="float8_e4m3fn"), "xla"),
        (CPU, replace(DEEPSEEK, dtype="float8_e4m3fn"), "xla"),
        (V6E, replace(DEEPSEEK, dtype="float16"), "xla"),
        (Device("rocm", "MI300X"), LLAMA, "xla"),
        (H100, GEMMA, "triton"),
        (A100, GEMMA, "triton"),
        (V6E, GEMMA, "tpu"),
        (CPU, GEMMA, "cpu"),
    ],
)
def test_auto(device: Device, shape: AttentionShape, expected: str) -> None:
    assert select_kernel(ATTENTION, "auto", device, (shape,)) == expected


@pytest.mark.parametrize(
    ("asked", "device", "shape", "message"),
    [
        ("gpu", A100, LLAMA, "compute capability 9"),
        ("gpu", H100, replace(LLAMA, dtype="float32"), "KV cache of float32"),
        ("gpu", CPU, LLAMA, "needs a GPU; this is a CPU"),
        ("triton", V6E, LLAMA, "'triton' needs a GPU; this is a TPU"),
        ("triton", T4, LLAMA, "needs an NVIDIA GPU of compute capability 8 or more; this is a Tesla T4"),
        ("triton", A100, replace(LLAMA, dtype="int8"), "'triton' does not support a KV cache of int8"),
        ("triton", A100, replace(LLAMA, head_size=512), "heads of size 512; supported: up to 256"),
        ("triton", A100, BY_TOKEN, "attention_backend='triton' does not support scales per token and head"),
        ("triton", A100, DEEPSEEK, "does not support latent attention"),
        ("cpu", CPU, replace(LLAMA, page_size=8), "multiples of"),
        ("cpu", CPU, replace(DEEPSEEK, page_size=8), "not 512, 64, 8 and bfloat16"),
        ("gpu", H100, DEEPSEEK, "does not support latent attention"),
        ("gpu", H100, BY_TOKEN, "attention_backend='gpu' does not support scales per token and head"),
        ("gpu", H100, GEMMA, "'gpu' does not support tokens of images that see later ones"),
        ("auto", V6E, BY_TOKEN, "requires a checkpoint with key and value scales on TPUs"),
        ("auto", CPU, replace(DEEPSEEK, dtype="int8", dynamic_scales=True), "not supported with latent attention"),
    ],
)
def test_what_cannot_be_is_refused(asked: str, device: Device, shape: AttentionShape, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        select_kernel(ATTENTION, asked, device, (shape,))


def test_triton_can_be_asked_for_in_float32() -> None:
    assert select_kernel(ATTENTION, "triton", A100, (replace(LLAMA, dtype="float32"),)) == "triton"


def test_a_jax_without_pallas_through_triton_has_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "find_spec", lambda name: None)
    assert select_kernel(ATTENTION, "auto", A100, (LLAMA,)) == "xla"
    with pytest.raises(ConfigError, match="which this version of JAX no longer includes"):
        select_kernel(ATTENTION, "triton", A100, (LLAMA,))


@pytest.mark.parametrize("asked", ["xla", "reference"])
def test_what_runs_everywhere_is_taken_as_asked(asked: str) -> None:
    assert {select_kernel(ATTENTION, asked, device, (LLAMA,)) for device in (H100, A100, CPU, V6E)} == {asked}
