"""The options of speculative decoding are read under vLLM's names."""

from typing import Any

import pytest

from jaxllm.config import EngineConfig
from jaxllm.config.speculation import Drafting
from jaxllm.errors import ConfigError


def drafting(**options: Any) -> Drafting | None:
    return EngineConfig.from_options(options).speculation.drafting


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, None),
        ({"speculative_config": {}}, None),
        ({"spec_method": "ngram"}, Drafting("ngram")),
        ({"speculative_model": "[ngram]", "num_speculative_tokens": 3}, Drafting("ngram", 3)),
        ({"speculative_config": {"model": "ngram"}}, Drafting("ngram")),
        (
            {"speculative_config": {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}},
            Drafting("ngram", 5, 2, 4),
        ),
        ({"spec_method": "ngram", "ngram_prompt_lookup_max": 1}, Drafting("ngram", ngram_min=1, ngram_max=1)),
        ({"spec_method": "ngram", "ngram_prompt_lookup_min": 8}, Drafting("ngram", ngram_min=8, ngram_max=8)),
        ({"spec_method": "ngram", "speculative_disable_by_batch_size": 4}, Drafting("ngram", most_requests=4)),
        ({"speculative_config": {"method": "ngram", "draft_tensor_parallel_size": 1}}, Drafting("ngram")),
        ({"spec_method": "mtp"}, Drafting("mtp", 3)),
        ({"speculative_config": {"method": "deepseek_mtp", "num_speculative_tokens": 1}}, Drafting("mtp", 1)),
        ({"speculative_model": "org/small"}, Drafting("draft_model", 3, model="org/small")),
        ({"spec_method": "eagle3", "speculative_model": "org/head"}, Drafting("eagle3", 3, model="org/head")),
        (
            {"speculative_config": {"method": "mlp_speculator", "model": "org/head", "num_speculative_tokens": 4}},
            Drafting("mlp_speculator", 4, model="org/head"),
        ),
        (
            {"speculative_config": {"method": "eagle3", "model": "org/head", "revision": "main"}},
            Drafting("eagle3", 3, model="org/head", revision="main"),
        ),
    ],
)
def test_all_ways_to_say_it(options: dict[str, Any], expected: Drafting | None) -> None:
    assert drafting(**options) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_speculative_tokens": 3}, "method is missing"),
        ({"speculative_config": {"method": "ngrams"}}, "did you mean 'ngram'"),
        ({"speculative_config": {"method": "eagle3", "model": None}}, "give the folder or Hub ID of the drafter"),
        ({"speculative_config": {"method": "medusa"}}, "'medusa' is not supported yet"),
        ({"speculative_config": {"method": "ngram", "lookup": 3}}, "unknown key 'lookup'"),
        ({"speculative_config": {"method": "ngram", "num_speculative_tokens": 0}}, "an integer from 1 to 31"),
        ({"speculative_config": {"method": "ngram", "num_speculative_tokens": "3"}}, "an integer from 1 to 31"),
        ({"speculative_config": {"method": "ngram", "prompt_lookup_min": 6}, "ngram_prompt_lookup_max": 3}, "at most"),
        ({"speculative_config": {"method": "ngram"}, "speculative_model": "org/draft"}, "'org/draft': omit it"),
        ({"speculative_config": {"num_speculative_tokens": 2, "method": "ngram"}, "num_speculative_tokens": 3}, "one"),
    ],
)
def test_what_is_wrong_is_said(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _ = drafting(**options)
