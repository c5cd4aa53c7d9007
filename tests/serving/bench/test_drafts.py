"""Acceptance in a load test, from a server's own counters."""

from jaxllm.serving.bench.drafts import draft_figures, read_draft_counters


def test_figures_are_those_of_the_time_in_between() -> None:
    before = {"num_drafts": 5.0, "num_draft_tokens": 9.0, "num_accepted_tokens": 1.0}
    after = {"num_drafts": 9.0, "num_draft_tokens": 17.0, "num_accepted_tokens": 7.0}
    after |= {"num_accepted_tokens_per_pos 1": 2.0, "num_accepted_tokens_per_pos 0": 4.0}
    figures = draft_figures(before, after)
    assert figures["spec_decode_acceptance_rate"] == 75.0
    assert figures["spec_decode_acceptance_length"] == 2.5
    assert figures["spec_decode_per_position_acceptance_rates"] == [1.0, 0.5]
    assert draft_figures(after, after) == draft_figures({}, {}) == {}


def test_a_server_that_is_not_there_has_none() -> None:
    assert read_draft_counters("http://127.0.0.1:9", {}, None) == {}
    assert read_draft_counters("file:///etc", {}, None) == {}
