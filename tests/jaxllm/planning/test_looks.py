"""What attention of DeepSeek V3.2 reads and computes, worked out by hand: 128 heads, latents of 512 + 64."""

from dataclasses import replace

from jaxllm.models.attention_plan import KeyIndexPlan, LatentAttentionPlan
from jaxllm.models.plan import LayerPlan
from jaxllm.planning.looks import Look, looks_of
from tests.models import small

PLAN = LatentAttentionPlan(rank=512, plain_size=128, rope_size=64, value_size=128, query_rank=1536)
INDEXED = replace(PLAN, index=KeyIndexPlan(heads=64, size=128, top=2048))


def looks(plan: LatentAttentionPlan, devices: int) -> tuple[Look, ...]:
    model = replace(small.MODEL, num_heads=128, num_kv_heads=1, head_size=64, layers=(LayerPlan(attention=plan),))
    return looks_of(model, plan, devices)


def test_all_keys() -> None:
    assert looks(PLAN, 1) == (Look(0, 2 * 128 * (576 + 512), 1.0),)


def test_chosen_keys() -> None:
    """Devices share the heads of attention; each has all of the index."""
    assert looks(INDEXED, 8) == (
        Look(2048, 2 * 128 * (576 + 512) / 8, 576 / 704),
        Look(0, 2 * 64 * 128, 128 / 704),
    )
