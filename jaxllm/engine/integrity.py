"""Whether the host state is still consistent, asked after something has failed."""

import logging
import time
from collections.abc import Callable

from jaxllm.errors import EngineError

logger = logging.getLogger(__name__)

MOST_OF_TIME = 0.02
"""The share of time that checks may take: whoever makes requests fail must not slow down the others with them."""


class IntegrityCheck:
    """Checks the invariants of the scheduler once they are in doubt, between two steps."""

    def __init__(self, check: Callable[[], None]) -> None:
        """`check` raises `AssertionError`."""
        self._check = check
        self.wanted = False
        """Whether something has failed since the last check."""
        self._not_before = 0.0

    def want(self) -> None:
        """Something has failed."""
        self.wanted = True

    def check_if_due(self) -> None:
        """Check, if it is wanted and the last time is not too near. Raises `EngineError`."""
        if not self.wanted or (began := time.monotonic()) < self._not_before:
            return
        self.wanted = False
        try:
            self._check()
        except AssertionError as error:
            raise EngineError(f"the scheduler's state is inconsistent after an internal error: {error}") from error
        now = time.monotonic()
        self._not_before = now + (now - began) / MOST_OF_TIME
