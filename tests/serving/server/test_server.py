"""The life of a server: real processes, from the start to every kind of end."""

import json
import signal
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from jaxllm.serving.ipc.client.process import END_SECONDS
from tests.conftest import RunPython
from tests.serving.certificates import make_certificate
from tests.serving.server_process import LONG, SMALL, Stream, running, streams

MAIN = ("-m", "jaxllm.serving.cli.main", "serve")
SECONDS = 120.0
"""Enough for anything on a busy machine."""


def assert_gone(process: psutil.Process) -> None:
    process.wait(SECONDS)


# What fails before a model is loaded: nothing here starts an engine.


def failing(run_python: RunPython, *arguments: str) -> str:
    done = run_python(*MAIN, *arguments, timeout=SECONDS)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def test_port_in_use(run_python: RunPython) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        error = failing(run_python, "--host", "127.0.0.1", "--port", str(port))
    assert (
        error
        == f"jaxllm: cannot listen on 127.0.0.1:{port}: another process is listening there; choose another --port\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max-modle-len", "8"], "unknown flag --max-modle-len; did you mean '--max-model-len'"),
        (["--port", "70000"], "port=70000: must be 0 to 65535"),
        (["--port", "0", "--host", "host.invalid"], "host='host.invalid'"),
        (["--port", "0", "--ssl-certfile", "absent.pem"], "TLS with absent.pem: No such file"),
        (["--port", "0", "--host", "127.0.0.1", "--chat-template", "absent"], "chat template 'absent' is neither"),
        (["--port", "0", "--host", "127.0.0.1", "--middleware", "absent:thing"], "absent"),
        (["--uds", "/absent/socket"], "cannot listen on uds='/absent/socket'"),
        (["--port", "0", "--no-structured-outputs-canary"], "not allowed in a server"),
    ],
)
def test_wrong_options_end_it_before_the_model_is_loaded(
    arguments: list[str], message: str, run_python: RunPython
) -> None:
    assert message in failing(run_python, *arguments)


def test_the_server_process_leaves_jax_to_the_engine(run_python: RunPython) -> None:
    code = "import sys, jaxllm.serving.server.server, jaxllm.serving.server.answering; print(*sys.modules)"
    loaded = set(run_python("-c", code).stdout.split())
    assert "jaxllm.serving.llm.async_llm" in loaded
    assert not loaded & {"jax", "flax", "torch", "jaxllm.engine.engine", "jaxllm.executor.runner"}


def test_a_wrong_model_is_one_line_too(run_python: RunPython) -> None:
    assert "absent" in failing(run_python, "./absent", "--host", "127.0.0.1", "--port", "0")


def test_told_to_end_while_it_loads(tmp_path: Path) -> None:
    with running(tmp_path / "log", *SMALL, wait=False) as server:
        deadline = time.monotonic() + SECONDS
        while not psutil.Process(server.process.pid).children() and time.monotonic() < deadline:
            time.sleep(0.02)
        engine = server.engine()
        server.signal(signal.SIGTERM)
        assert server.end() == 0
        assert_gone(engine)
        assert "received a signal to exit before the model was loaded" in server.log
        assert "Traceback" not in server.log


# One server per kind of end.


def test_drain(tmp_path: Path) -> None:
    """SIGTERM: what runs finishes, nothing new begins, probes are answered, exit code 0."""
    with running(tmp_path / "log", *SMALL) as server, httpx.Client(base_url=server.url, timeout=SECONDS) as client:
        engine = server.engine()
        assert client.get("/ready").status_code == 200
        stream = Stream(client, LONG)
        server.signal(signal.SIGTERM)
        server.wait_for("shutting down: 1 requests")
        refused = client.post("/v1/completions", json={"prompt": "x"})
        assert client.get("/ready").status_code == refused.status_code == 503
        assert "retry-after" in refused.headers
        assert client.get("/health").status_code == 200
        found = stream.rest()
        assert found[-1] == b"[DONE]"
        assert json.loads(found[-2])["choices"][0]["finish_reason"] == "length"
        assert server.end() == 0
        assert_gone(engine)
        with pytest.raises(httpx.ConnectError):
            client.get("/ready")
        assert "Traceback" not in server.log


def test_time_runs_out_on_a_unix_socket_with_a_config_file(tmp_path: Path) -> None:
    """After --shutdown-timeout, streams end with an error; the socket's file is removed."""
    path = tmp_path / "socket"
    # As a server leaves it that was killed: in nobody's way.
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    config = tmp_path / "server.yaml"
    config.write_text(
        "max-num-seqs: 4\nmax_num_batched_tokens: 16\noptimization-level: 0\nshutdown-timeout: 100\n"
        f"max-model-len: 8k\nuds: {path}\nserved-model-name: [first, second]\naccess-log: true\n"
    )
    flags = ("demo", "--config", str(config), "--shutdown-timeout", "0.2", "--max-model-len", "512")
    with (
        running(tmp_path / "log", *flags) as server,
        httpx.Client(
            base_url="http://localhost", timeout=SECONDS, transport=httpx.HTTPTransport(uds=str(path))
        ) as client,
    ):
        wait_for_socket(path)
        assert f"unix:{path}" in server.log
        assert [model["id"] for model in client.get("/v1/models").json()["data"]] == ["first", "second"]
        running_streams = streams(*[client] * 4)
        server.signal(signal.SIGTERM)
        ends = [stream.rest()[-1] for stream in running_streams]
        assert server.end() == 0
        assert all(b"the server is shutting down" in end for end in ends)
        assert not path.exists()
        assert '"GET /v1/models" 200 in' in server.log
        assert "Traceback" not in server.log


def wait_for_socket(path: Path) -> None:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(str(path)) == 0:
                return
        time.sleep(0.05)
    pytest.fail("nobody listens")


@pytest.fixture
def ignoring_interrupts() -> Iterator[None]:
    """Processes that are started ignore SIGINT, as shells start what a script runs in the background."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_ends_a_server_that_was_started_to_ignore_it(tmp_path: Path, ignoring_interrupts: None) -> None:
    """While it loads: whoever sends the signal all the same means it."""
    with running(tmp_path / "log", *SMALL, wait=False) as server:
        deadline = time.monotonic() + SECONDS
        while not psutil.Process(server.process.pid).children() and time.monotonic() < deadline:
            time.sleep(0.02)
        server.signal(signal.SIGINT)
        assert server.end() == 0, server.log
        assert "Traceback" not in server.log


def test_second_signal(tmp_path: Path, ignoring_interrupts: None) -> None:
    """Ctrl-C twice ends server and engine at once, whatever runs, also where it was started to ignore it."""
    with running(tmp_path / "log", *SMALL, "--log-format", "json") as server:
        engine = server.engine()
        with httpx.Client(base_url=server.url, timeout=SECONDS) as client:
            stream = Stream(client, LONG)
            server.signal(signal.SIGINT)
            server.wait_for("shutting down: 1 requests")
            # The request never finishes, nor does a polite end of the engine before its time runs out.
            engine.suspend()
            begin = time.monotonic()
            server.signal(signal.SIGINT)
            assert server.end() == 128 + signal.SIGINT
            assert time.monotonic() - begin < END_SECONDS
            assert_gone(engine)
            stream.join(SECONDS)
        assert "Traceback" not in server.log
        assert all(json.loads(line)["message"] for line in server.log.splitlines())


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A certificate for localhost and its key."""
    return make_certificate(tmp_path_factory.mktemp("tls"))


def test_the_engine_dies_for_good_behind_tls_and_a_proxy(tmp_path: Path, certificate: tuple[str, str]) -> None:
    """Waiting requests get an error at once, and without restarts the server ends and says why."""
    tls = ("--ssl-certfile", certificate[0], "--ssl-keyfile", certificate[1], "--root-path", "/llm")
    context = ssl.create_default_context(cafile=certificate[0])
    limits = ("--h11-max-header-count", "20", "--timeout-headers", "3", "--max-restarts", "0")
    with (
        running(tmp_path / "log", *SMALL, *tls, *limits) as server,
        httpx.Client(base_url=f"https://127.0.0.1:{server.port}", timeout=SECONDS, verify=context) as client,
    ):
        assert f"https://127.0.0.1:{server.port}/llm/v1" in server.log
        # Whether the proxy takes the prefix off or not.
        assert client.get("/llm/v1/models").status_code == client.get("/v1/models").status_code == 200
        assert client.get("/ready", headers={f"x-{number}": "1" for number in range(20)}).status_code == 431
        assert client.get("/ready", headers={"x": "y" * 100_000}).status_code == 431
        with socket.create_connection(("127.0.0.1", server.port), timeout=SECONDS) as silent:
            assert silent.recv(1) == b"", "a handshake has no longer than headers"
        stream = Stream(client, LONG)
        server.engine().kill()
        assert b"the engine process died" in stream.rest()[-1]
        # The client keeps its connection, and does not answer when TLS says goodbye.
        begin = time.monotonic()
        assert server.end() == 1
        assert server.log.splitlines()[-1].startswith("jaxllm: the engine process died: killed by SIGKILL")
        assert time.monotonic() - begin < END_SECONDS
        assert "Traceback" not in server.log


def test_the_server_itself_is_killed(tmp_path: Path) -> None:
    """Nothing of it is left."""
    with running(tmp_path / "log", *SMALL) as server:
        engine = server.engine()
        server.process.kill()
        assert server.end() == -signal.SIGKILL
        assert_gone(engine)
