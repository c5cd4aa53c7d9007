import pytest

from jaxllm.pallas_kernels.chips import CHIPS
from jaxllm.pallas_kernels.paged_attention.tpu.common import Blocks
from jaxllm.pallas_kernels.tuning import find_blocks, nearest_share, tuned_blocks

KEY: dict[str, int | str] = {
    "kernel": "decode",
    "head_size": 128,
    "num_kv_heads": 8,
    "group": 4,
    "page_size": 64,
    "q_dtype": "bfloat16",
    "kv_dtype": "bfloat16",
}


def test_a_tuned_key_is_found_whatever_the_order_of_its_fields() -> None:
    blocks = find_blocks("paged_attention", "v6e", dict(reversed(KEY.items())))
    assert blocks is not None
    assert Blocks(**blocks).slots == 4


@pytest.mark.parametrize(("chip", "page_size"), [("v6e", 48), ("none", 64)])
def test_a_miss_is_none(chip: str, page_size: int) -> None:
    assert find_blocks("paged_attention", chip, {**KEY, "page_size": page_size}) is None


@pytest.mark.parametrize("chip", CHIPS)
def test_all_entries_are_valid_blocks(chip: str) -> None:
    for key, fields in tuned_blocks("paged_attention", chip).items():
        blocks, page_size = Blocks(**fields), int(dict(key)["page_size"])
        assert blocks.keys % page_size == 0
        assert blocks.keys % blocks.chunk == 0


def test_the_nearest_share() -> None:
    exact = nearest_share("paged_attention", "v6e", KEY)
    assert exact is not None
    assert 0 < exact <= 1.05
    assert nearest_share("paged_attention", "v6e", {**KEY, "kv_dtype": "int8"}) == exact
    assert nearest_share("paged_attention", "none", KEY) is None
    assert nearest_share("paged_attention", "v6e", {**KEY, "kernel": "other"}) is None
