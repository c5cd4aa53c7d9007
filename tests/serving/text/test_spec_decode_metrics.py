"""Drafts of one request, under vLLM's names."""

from jaxllm.requests.outputs import EngineOutput, RequestDrafts
from jaxllm.serving.ipc.engine_process.output_queue import merge
from jaxllm.serving.text.spec_decode_metrics import SpecDecodeMetrics


def test_steps_are_counted() -> None:
    found = SpecDecodeMetrics.empty(3, is_detailed=True)
    assert found.mean_acceptance_length is None
    assert found.draft_acceptance_rate is None
    for step in ((3, 3), (2, 0), (3, 1), (2, 0)):
        found.count(*step)
    assert found == SpecDecodeMetrics(3, 4, 10, 4, [2, 1, 0, 1], {3: [0, 1, 0, 1], 2: [2, 0, 0]})
    assert found.mean_acceptance_length == 2
    assert found.draft_acceptance_rate == 0.4


def test_a_summary_has_no_histograms() -> None:
    found = SpecDecodeMetrics.empty(3, is_detailed=False)
    found.count(3, 2)
    assert found == SpecDecodeMetrics(3, 1, 3, 2)


def test_outputs_that_wait_keep_the_steps_of_each() -> None:
    waiting = EngineOutput("a", [1])
    for steps in ([], [(2, 1)], [(3, 0)]):
        merge(waiting, EngineOutput("a", [2], drafts=RequestDrafts(3, False, list(steps))))
    merge(waiting, EngineOutput("a", [2]))
    assert waiting.drafts == RequestDrafts(3, False, [(2, 1), (3, 0)])
