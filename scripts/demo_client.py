"""What scripts/demo shows once its server is ready: one streamed chat, with nothing but the standard library."""

import json
import os
import socket
import sys
import time
import urllib.request
from collections.abc import Iterator

HINTS = """
The server runs until Ctrl-C. From another terminal:

  curl http://localhost:{port}/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{{"messages": [{{"role": "user", "content": "What is 17 plus 25?"}}]}}'

  .venv/bin/jaxllm chat --url http://localhost:{port}/v1       a conversation
  OPENAI_BASE_URL=http://localhost:{port}/v1 OPENAI_API_KEY=none python your_openai_program.py

and in a browser, http://localhost:{port}/ is a page to chat on and to watch the server; http://localhost:{port}/docs
lists every route. The model, models/demo, knows the little world of
Brindle Vale.
"""


def main(port: int, question: str) -> int:
    """Wait until the server on this machine is ready, ask it, and print the answer and what to try next."""
    server = os.getppid()
    if _listens(port):
        # Somebody else: the server is about to say so.
        return 2
    while not _ready(port):
        if os.getppid() != server:
            # It ended, and has said why.
            return 1
        time.sleep(0.2)
    print(f"\n> {question}", flush=True)
    for text in _chat(port, question):
        print(text, end="", flush=True)
    print("\n" + HINTS.format(port=port), flush=True)
    return 0


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def _chat(port: int, question: str) -> Iterator[str]:
    """The pieces of the answer as they come."""
    body = {"messages": [{"role": "user", "content": question}], "stream": True, "temperature": 0.7, "max_tokens": 200}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as response:
        for line in response:
            if line.startswith(b"data: {"):
                for choice in json.loads(line[6:])["choices"]:
                    yield choice["delta"].get("content") or ""


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2]))
