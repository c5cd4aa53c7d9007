"""Types of fields with the bounds of their values, for the OpenAPI document.

The document alone has them: `SamplingParams` checks values, and says more about a wrong one than a schema could.
"""

from typing import Annotated, Any

from msgspec import Meta

from jaxllm.sampling_limits import MAX_SEQUENCES


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
