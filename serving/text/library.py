"""The libraries for tokenizers: how they are imported, and how they fail."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from jaxllm.errors import JaxLLMError
from jaxllm.models.errors import is_failure

_LONGEST_REASON = 200


def import_transformers() -> Any:
    """The module. What is taken from it is imported then."""
    # Otherwise the import warns that there is no PyTorch, which nobody here needs.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    # A second, which most starts need not wait for: see `cached_tokenizer`.
    import transformers

    return transformers


@contextmanager
def failing_as(make: Callable[[str], Exception]) -> Iterator[None]:
    """Turn whatever a library raises within, panics too, into the error that is made with the reason.

    What this project raises itself says enough.
    """
    try:
        yield
    except JaxLLMError:
        raise
    except BaseException as error:
        if not is_failure(error):
            raise
        raise make(reason_of(error)) from error


def reason_of(error: BaseException) -> str:
    """A library's message, in one line that is not too long."""
    reason = " ".join(str(error).split()) or type(error).__name__
    return reason if len(reason) <= _LONGEST_REASON else f"{reason[:_LONGEST_REASON]}..."
