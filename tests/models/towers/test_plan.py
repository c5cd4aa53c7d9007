"""Sizes of programs for crops of any size."""

import pytest

from jaxllm.models.towers.plan import program_sizes


@pytest.mark.parametrize(
    ("most", "patches_per_row", "sizes"),
    [
        (65536, 4, (256, 1024, 4096, 16384, 65536)),
        (5476, 4, (256, 1024, 4096, 5476)),
        (256, 4, (256,)),
        (100, 4, (100,)),
        (900, 9, (261, 900)),
    ],
)
def test_each_is_a_quarter_of_the_next(most: int, patches_per_row: int, sizes: tuple[int, ...]) -> None:
    assert program_sizes(most, patches_per_row) == sizes
    assert all(size % patches_per_row == 0 for size in sizes)
