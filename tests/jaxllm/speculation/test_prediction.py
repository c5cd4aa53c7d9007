"""Following a prediction: along it, away from it and back, with a search that is bounded."""

import numpy as np
import pytest

from jaxllm.speculation.prediction import MOST_SEARCHED, _Followed


def along(predicted: list[int], outputs: list[list[int]]) -> list[list[int]]:
    """The drafts after each of some outputs; each output goes on from the one before."""
    followed = _Followed(np.array(predicted, np.int32))
    return [followed.drafts(np.array(output, np.int32), 3).tolist() for output in outputs]


def test_it_is_followed_left_and_followed_again() -> None:
    found = along([1, 2, 3, 4, 5, 6, 7], [[], [1], [1, 2, 9], [1, 2, 9, 4], [1, 2, 9, 4, 5], [1, 2, 9, 4, 5, 6]])
    assert found == [[1, 2, 3], [2, 3, 4], [], [], [6, 7], [7]]


@pytest.mark.parametrize("predicted", [[0] * (3 * MOST_SEARCHED), list(range(3 * MOST_SEARCHED))])
def test_no_more_is_searched_than_agreed(predicted: list[int]) -> None:
    beyond = 2 * MOST_SEARCHED
    found = along(predicted, [[99999], [99999, beyond, beyond + 1]])
    assert found[-1] == []
