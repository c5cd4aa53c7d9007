"""Which files of ours a chat request passes in the API server, from its bytes to the engine's queue and back.

    scripts/bench request_path
    scripts/bench request_path --returns

Serves the demo model, sends one chat request to warm up, and notes for a second one every function of ours that is
called, on all threads of the server's process. Prints the files with the number of different functions of each.

`--returns` prints the files in the order in which calls enter them, from the call of `create_chat_completion` until the
request is in the engine's queue, by that function and by the threads that work for it. Calls inside a file are one
visit, and going back to a caller is none. A return is a visit of a file that was left for one of another folder: the
path goes back and forth between parts of the server instead of through one stage after the other.
"""

import argparse
import asyncio
import socket
import sys
import threading
from collections import Counter, defaultdict
from pathlib import Path
from types import FrameType
from typing import Any

import httpx

import jaxllm
from benchmarks.shared.counting import FOLDERS
from jaxllm.config import EngineConfig
from jaxllm.serving.options.server import ServerOptions
from jaxllm.serving.server import server
from jaxllm.serving.server.event_loop import run_on_fast_loop

BODY = {"model": "demo", "messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 8}
ROOT = Path(jaxllm.__file__).resolve().parent.parent
HANDLER, QUEUED = "create_chat_completion", "SendQueue.put"
THREADS = ("text", "body")
"""Names of threads that work for requests."""


class CallPath:
    """Notes functions of ours that are called while it is on, by file."""

    def __init__(self) -> None:
        self.on = False
        self.functions: dict[str, set[str]] = defaultdict(set)
        self.visits: list[str] = []
        """Files, as calls enter them on the way to the engine's queue."""
        self._frames: list[FrameType] = []
        self._queued = False

    def note(self, frame: FrameType, event: str, _: Any) -> None:
        """Called by `sys.setprofile`."""
        name = frame.f_code.co_filename
        if self.on and event == "call" and name.startswith(FOLDERS):
            file = str(Path(name).resolve().relative_to(ROOT))
            self.functions[file].add(frame.f_code.co_qualname)
            self._visit(file, frame)

    def _visit(self, file: str, frame: FrameType) -> None:
        # A coroutine is called again whenever it goes on; its frame stays the same, if it is not freed.
        if self._queued or any(frame is known for known in self._frames) or not _works_for_handler(frame):
            return
        self._frames.append(frame)
        if not self.visits or self.visits[-1] != file:
            self.visits.append(file)
        self._queued = frame.f_code.co_qualname == QUEUED

    @property
    def returns(self) -> list[str]:
        """The files of visits that come back from another folder, in order."""
        found, last = [], dict[str, int]()
        for index, file in enumerate(self.visits):
            left_for = self.visits[last.get(file, index) + 1 : index]
            if any(Path(each).parent != Path(file).parent for each in left_for):
                found.append(file)
            last[file] = index
        return found


def _works_for_handler(frame: FrameType | None) -> bool:
    if threading.current_thread().name.startswith(THREADS):
        return True
    while frame is not None and frame.f_code.co_name != HANDLER:
        frame = frame.f_back
    return frame is not None


async def measure(noted: CallPath, *, stream: bool) -> None:
    """Note the path of one request to a server in this process."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = ServerOptions(host="127.0.0.1", port=port, disable_log_stats=True, log_level="error")
    config = EngineConfig.from_options({"model": "demo", "max_model_len": 256})
    serving = asyncio.create_task(server.serve(config, options))
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            for _ in range(600):
                if await _ready(client):
                    break
                await asyncio.sleep(0.1)
            for noted.on in (False, True):
                (await client.post("/v1/chat/completions", json=BODY | {"stream": stream})).raise_for_status()
            noted.on = False
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


async def _ready(client: httpx.AsyncClient) -> bool:
    try:
        return (await client.get("/ready")).is_success
    except httpx.ConnectError:
        return False


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--stream", action="store_true", help="ask for a stream")
    parser.add_argument("--returns", action="store_true", help="print the order of the files to the engine's queue")
    arguments = parser.parse_args()
    noted = CallPath()
    # From the start, as threads that exist already cannot be given one.
    threading.setprofile(noted.note)
    sys.setprofile(noted.note)
    run_on_fast_loop(_measured(noted, stream=arguments.stream))
    if arguments.returns:
        print("\n".join(noted.visits))
        for file, count in Counter(noted.returns).most_common():
            print(f"{count:4} returns to {file}")
        print(f"{len(set(noted.visits))} files, {len(noted.returns)} returns")
        return
    for name, functions in sorted(noted.functions.items()):
        print(f"{len(functions):4} {name}")
    print(f"{len(noted.functions)} files, {sum(map(len, noted.functions.values()))} functions")


async def _measured(noted: CallPath, *, stream: bool) -> int:
    await measure(noted, stream=stream)
    return 0


if __name__ == "__main__":
    main()
