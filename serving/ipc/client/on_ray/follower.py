"""`python -m jaxllm.serving.ipc.client.on_ray.follower FOLDER`: a process of an engine that follows the first one.

Not for people: `EngineActor` starts it. It lives as long as its standard input stays open.
"""

import logging
import os
import shutil
import signal
import sys
import threading
from pathlib import Path

import msgspec

from jaxllm.config import EngineConfig
from jaxllm.errors import CapacityError, ConfigError, EngineError
from jaxllm.load import follow_engine
from jaxllm.serving.telemetry.logs import configure_logging

_FILE = "config"
logger = logging.getLogger(__name__)


def write_config(folder: str, config: bytes) -> None:
    """Leave the engine's configuration, in msgpack, for the process."""
    Path(folder, _FILE).write_bytes(config)


def main(folder: str) -> int:
    """Follow until the first process ends; the exit code."""
    # They reach a whole group of processes; when this one ends is the first one's to say.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Thread(target=_end_with_actor, name="watch-actor", daemon=True).start()
    config = msgspec.msgpack.decode(Path(folder, _FILE).read_bytes(), type=EngineConfig)
    shutil.rmtree(folder, ignore_errors=True)
    configure_logging("info", json_lines=False)
    try:
        follow_engine(config)
    except (ConfigError, CapacityError, EngineError) as error:
        # The first process, if it has come, was told.
        logger.error("%s", error)
        return 1
    return 0


def _end_with_actor() -> None:
    """The actor has gone, or wants this process to. The first one notices."""
    # Not `sys.stdin`, whose lock an interpreter that ends by an error would want.
    while os.read(0, 1024):
        pass
    os._exit(1)


if __name__ == "__main__":
    code = main(sys.argv[1])
    # As for an engine's process: there is nothing left to clean up.
    sys.stderr.flush()
    os._exit(code)
