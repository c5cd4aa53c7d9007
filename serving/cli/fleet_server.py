"""`python -m jaxllm.serving.cli.fleet_server FILE`: `jaxllm serve --config FILE` as one of a fleet.

Not for people: `jaxllm.serving.fleet.process` starts it. It ends when its standard input does, which is when the
process has ended that started it.
"""

import os
import signal
import sys
import threading
import time

from jaxllm.serving.cli.main import main

_SECONDS = 60.0
"""Nobody waits for requests that run: their clients were the router's."""


def _watch() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_watch, name="fleet-watch", daemon=True).start()
    code = main(["serve", "--config", sys.argv[1]])
    sys.stderr.flush()
    os._exit(code)
