"""Types of fields with the bounds of their values, for the OpenAPI document.

The document alone has most of them: `SamplingParams` checks values, and says more about a wrong one than a schema
could. How long lists may be is checked here, before anything is made of their items.
"""

from typing import Annotated, Any

from msgspec import Meta

from jaxllm.requests.sampling_limits import MAX_SEQUENCES


def at_most(number: int, **keywords: Any) -> Meta:
    """Most items of a list, which is checked, and `keywords` as in `documented`."""
    return Meta(max_length=number, extra_json_schema=keywords or None)


MOST_MESSAGES = 8192
"""Messages of a conversation, or items of one in the Responses API."""
MOST_PARTS = 4096
"""Parts of the content of one message."""
MOST_CALLS = 1024
"""Calls in one message."""
MOST_TOOLS = 1024
"""Tools of one request; OpenAI takes 128."""
MOST_DOCUMENTS = 16384
"""Texts of one request that are read one by one."""
MOST_TEXTS = 16384
"""Texts or tokens of one field, where `jaxllm.requests.sampling_limits` has no lower bound."""
MOST_BIASES = 65536
"""Tokens with a bias."""
MOST_EXTRA_ARGS = 64
"""Arguments for an operator's extensions."""


def documented(**keywords: Any) -> Meta:
    """Keywords of JSON Schema that are shown and not checked."""
    return Meta(extra_json_schema=keywords)


NonEmpty = Annotated[str, Meta(min_length=1)]
"""Checked, as nobody else would."""
FromZero = Annotated[int, Meta(ge=0)]
"""Checked, as nobody else would."""
Text = Annotated[str, documented(minLength=1)]
Count = Annotated[int, documented(minimum=1, maximum=MAX_SEQUENCES)]
AtLeastOne = Annotated[int, documented(minimum=1)]
Natural = Annotated[int, documented(minimum=0)]
OrMinusOne = Annotated[int, documented(minimum=-1)]
Int64 = Annotated[int, documented(minimum=-(2**63), maximum=2**63 - 1)]
NotNegative = Annotated[float, documented(minimum=0)]
Positive = Annotated[float, documented(exclusiveMinimum=0)]
Penalty = Annotated[float, documented(minimum=-2, maximum=2)]
Probability = Annotated[float, documented(minimum=0, maximum=1)]
Share = Annotated[float, documented(exclusiveMinimum=0, maximum=1)]
