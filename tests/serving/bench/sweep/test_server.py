"""Servers that a sweep starts."""

import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from jaxllm.errors import EngineError
from jaxllm.serving.bench.sweep.server import SweepServer


def test_another_server_at_the_address_is_not_measured() -> None:
    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Other) as other:
        thread = threading.Thread(target=other.serve_forever)
        thread.start()
        try:
            url = f"http://127.0.0.1:{other.server_port}"
            command = [sys.executable, "-c", "import time; time.sleep(60)"]
            with (
                pytest.raises(EngineError, match="another server already listens"),
                SweepServer(command, url, sys.stdout, 30),
            ):
                pass
        finally:
            other.shutdown()
            thread.join()
