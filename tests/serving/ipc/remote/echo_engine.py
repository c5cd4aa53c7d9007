"""An engine process without an engine: answers each prompt with its own tokens. Starts within a moment."""

import sys
import threading
from os import _exit

from jaxllm.engine.stats import StepStats
from jaxllm.requests.outputs import EngineOutput
from jaxllm.serving.ipc.engine_process.clients import Sockets
from jaxllm.serving.ipc.messages import Add, Credit, Outputs, Ready
from tests.serving.conftest import engine_info


def main() -> None:
    """Serve one client until standard input is closed."""
    threading.Thread(target=lambda: (sys.stdin.buffer.read(), _exit(0)), daemon=True).start()
    sockets = Sockets(sys.argv[1])
    sockets.greet()
    send = sockets.send
    send(Ready(engine_info(model=f"engine of {sys.argv[0]}")), 0)
    for taken, message in enumerate(iter(sockets.receive, None), 1):
        if isinstance(message, Add):
            tokens = message.prompt_token_ids.tolist()
            name = message.sequences[0].request_id
            if name == "die":
                _exit(7)
            send(Outputs([EngineOutput(name, tokens, finish_reason="stop")], StepStats()), taken)
        else:
            send(Credit(), taken)


if __name__ == "__main__":
    main()
