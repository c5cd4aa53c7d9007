"""The forms of requests under the options of an engine."""

import msgspec

from jaxllm.config import StructuredOptions
from jaxllm.requests.structured_outputs import StructuredOutputsParams


def with_options(form: StructuredOutputsParams, options: StructuredOptions) -> StructuredOutputsParams:
    """The form that is compiled for a request which asks for `form`."""
    return msgspec.structs.replace(
        form,
        disable_any_whitespace=form.disable_any_whitespace or options.disable_any_whitespace,
        whitespace_pattern=None if options.disable_any_whitespace else form.whitespace_pattern,
        disable_additional_properties=form.disable_additional_properties or options.disable_additional_properties,
    )
