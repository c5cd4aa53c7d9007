"""The fingerprint of an engine, which takes long to compute where there are many weights."""

import logging
import threading
from collections.abc import Callable

from jaxllm.engine.transfer.fingerprint import Fingerprint
from jaxllm.models.errors import ModelError

logger = logging.getLogger(__name__)

READY_SECONDS = 5.0
"""How long a start waits for the fingerprint. Later, what needs it waits."""


class Identity:
    """The fingerprint of an engine, which a thread computes."""

    def __init__(self, compute: Callable[[], Fingerprint]) -> None:
        self.known: Fingerprint | None = None
        self.problem = ""
        """Why there is none, and will be none."""
        self._compute, self._is_done = compute, threading.Event()
        threading.Thread(target=self._run, name="kv-transfer-fingerprint", daemon=True).start()
        if not self._is_done.wait(READY_SECONDS):
            logger.info("KV transfer: pages are exchanged when the weights are hashed")

    def _run(self) -> None:
        try:
            self.known = self._compute()
        except (OSError, ModelError) as error:
            self.stop(f"the weights cannot be hashed: {error}")
        except Exception:
            # The engine goes on without.
            logger.exception("KV transfer: the fingerprint cannot be computed")
            self.stop("the fingerprint cannot be computed")
        self._is_done.set()

    def stop(self, problem: str) -> None:
        """Exchange nothing from now on."""
        if not self.problem:
            logger.warning("KV transfer: %s; no pages are exchanged until the engine is started again", problem)
        self.problem, self.known = problem, None
