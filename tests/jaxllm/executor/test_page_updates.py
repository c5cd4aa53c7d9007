"""Which rows of the page table the device must be told, alongside the page that each step brings."""

import numpy as np
import pytest

from jaxllm.executor.runner import _grown_by_pages
from jaxllm.requests.request import Request
from jaxllm.requests.sampling_params import SamplingParams
from jaxllm.scheduler.plan import StepPlan
from jaxllm.scheduler.table import RequestTable

PAGE, PROMPT = 4, 6


@pytest.mark.parametrize(
    ("start", "count", "told"),
    [
        (8, 4, False),  # one page, which the step brings
        (8, 5, True),  # positions 8 to 12: the first token of a second new page
        (8, 8, True),  # exactly two pages on
        (7, 5, False),  # what is left of a page, and the next one
        (7, 9, True),  # what is left of a page, and exactly two more
        (7, 6, True),
        (8, 12, True),
        (0, 6, False),  # the prompt, whose pages were told at admission
    ],
)
def test_rows_that_grow_by_more_than_the_page_of_their_last_token(start: int, count: int, told: bool) -> None:
    table = RequestTable(2, 64, 16)
    request = Request(
        request_id="a", prompt_token_ids=np.arange(PROMPT, dtype=np.int32), params=SamplingParams(max_tokens=40)
    )
    slot = table.insert(request, np.arange(1, 3, dtype=np.int32), 0)
    plan = StepPlan(
        slots=np.array([slot], np.int32),
        num_new_tokens=np.array([count], np.int32),
        starts=np.array([start], np.int32),
        samples=np.ones(1, np.bool_),
        num_decodes=0,
        num_tokens=count,
        requests=[request],
        admitted=[],
        preempted=[],
        generations=table.generation[[slot]],
    )
    assert _grown_by_pages(plan, table, PAGE) == ([slot] if told else [])
