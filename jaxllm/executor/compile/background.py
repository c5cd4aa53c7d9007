"""Making the remaining step shapes while the engine already works."""

import logging
import threading
from collections.abc import Sequence

from jaxllm.executor.compile.buckets import Bucket, Buckets
from jaxllm.executor.compile.executables import Executables

logger = logging.getLogger(__name__)


def startup_buckets(buckets: Buckets) -> tuple[Bucket, ...]:
    """The shapes an engine cannot begin without: one request alone, a few, and any step at all."""
    return tuple(dict.fromkeys((*buckets.all[:2], buckets.largest)))


class BackgroundCompilation:
    """A thread that makes step shapes one after the other, the smallest first.

    Until a shape is there, its steps run in the next larger one: slower, with the same results. It ends when all are
    made, or after the one at hand when `stop` is called or the program's main thread ends.
    """

    def __init__(self, executables: Executables, buckets: Sequence[Bucket]) -> None:
        self._executables = executables
        self._buckets = buckets
        self._stopped = threading.Event()
        self._complete = False
        self._thread = threading.Thread(target=self._run, name="compile in background")
        self._thread.start()

    @property
    def complete(self) -> bool:
        """Whether every shape is there."""
        return self._complete

    def stop(self) -> None:
        """Begin no further shape. Does not wait for the one at hand, which cannot be interrupted."""
        self._stopped.set()

    def _run(self) -> None:
        failed = False
        steps = [(bucket.name, f"the step of {bucket}") for bucket in self._buckets]
        # Until these are made, steps with what makes drafts run in their place.
        steps += [(bucket.plain_name, f"the step without drafts of {bucket}") for bucket in self._buckets]
        for name, what in steps:
            # The interpreter waits for this thread when it ends: no longer than it must.
            if self._stopped.is_set() or not threading.main_thread().is_alive():
                return
            if not self._executables.has(name):
                continue
            try:
                self._executables.get(name)
            except Exception:
                # Nobody waits for it: steps go on in larger shapes.
                failed = True
                logger.exception("compiling %s failed; others run in its place", what)
        if not failed:
            self._complete = True
            logger.info("all step shapes are compiled")
