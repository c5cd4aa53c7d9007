"""The GPU kernel refuses unsupported inputs when it is traced."""

from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from jaxllm.pallas_kernels.paged_attention.cases import CASES, Case
from jaxllm.pallas_kernels.paged_attention.inputs import abstract_inputs

CASE = replace(CASES[0], dtype="bfloat16")


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (replace(CASE, kv_dtype="float32"), "a KV cache of float32; supported: bfloat16, float16, int8"),
        (replace(CASE, page_size=12), "pages of 12 tokens; supported: multiples of 8"),
        (replace(CASE, head_size=72), "heads of size 72 in bfloat16; supported: multiples of 16 up to 256"),
        (
            replace(CASE, head_size=80, kv_dtype="int8"),
            "heads of size 80 in int8; supported: multiples of 32 up to 256",
        ),
        (replace(CASE, head_size=512), "heads of size 512"),
        (replace(CASE, num_heads=128, num_kv_heads=1), "128 query heads per KV head; supported: up to 64"),
    ],
    ids=["float32", "page_size", "head_size", "head_size_int8", "large_head", "group"],
)
def test_refusal_names_an_alternative(case: Case, message: str) -> None:
    with pytest.raises(NotImplementedError, match=f"'gpu' does not support {message}.*Choose implementation 'xla'"):
        jax.eval_shape(lambda inputs: inputs.call("gpu", jnp.int32(0)), abstract_inputs(case))


def test_other_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    device = SimpleNamespace(compute_capability="10.0", device_kind="NVIDIA B200")
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "devices", lambda: [device])
    with pytest.raises(NotImplementedError, match=r"Hopper\); NVIDIA B200 has 10\.0\. Choose implementation 'xla'"):
        jax.eval_shape(lambda inputs: inputs.call("gpu", jnp.int32(0)), abstract_inputs(CASE))
