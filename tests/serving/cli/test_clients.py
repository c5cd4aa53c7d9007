"""`jaxllm chat` and `jaxllm complete` against one real server, two of them in a real terminal."""

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from jaxllm.serving.cli.main import main
from tests.serving.cli.commands import KEY, MAIN, run
from tests.serving.server_process import SMALL, ServerProcess, running

IN_TERMINAL = """
import fcntl, runpy, termios
# Its controlling terminal, or Ctrl-C would be a character like any other.
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
runpy.run_module("jaxllm.serving.cli.main", run_name="__main__")
"""


@pytest.fixture
def api(server: ServerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{server.url}/v1/", headers={"Authorization": f"Bearer {KEY}"}, timeout=120) as client:
        yield client


def chat_answer(api: httpx.Client, *messages: str) -> str:
    """The server's answer to these messages, alternately of the user and of the server."""
    roles = ("user", "assistant")
    body = {
        "messages": [{"role": roles[index % 2], "content": text} for index, text in enumerate(messages)],
        "temperature": 0,
        "max_tokens": 24,
    }
    return str(api.post("chat/completions", json=body).json()["choices"][0]["message"]["content"])


GREEDY = ("--temperature", "0", "--max-tokens", "24")


def test_quick_chat(server: ServerProcess, api: httpx.Client) -> None:
    done = run("chat", "--url", server.url, "-q", "What is 17 plus 25?", *GREEDY)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == chat_answer(api, "What is 17 plus 25?") + "\n"


def test_a_chat_without_a_server(server: ServerProcess, api: httpx.Client, capsys: pytest.CaptureFixture[str]) -> None:
    done = run("chat", "demo", "-q", "What is 17 plus 25?", *GREEDY)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == chat_answer(api, "What is 17 plus 25?") + "\n"
    lines = "What is 1 plus 2?\nWhere does Luma live?\n/exit\n"
    done = run("chat", "demo", *GREEDY, stdin=lines)
    first = chat_answer(api, "What is 1 plus 2?")
    assert done.stdout == f"{first}\n{chat_answer(api, 'What is 1 plus 2?', first, 'Where does Luma live?')}\n"
    for arguments, message in (
        (("./none", "-q", "a"), "no such folder"),
        (("demo", "-q", "a", "--temperature", "-1"), "temperature=-1.0: must be"),
        (("demo", "--url", server.url), "omit it to use a server"),
    ):
        assert main(["chat", *arguments]) == 2
        said = capsys.readouterr().err
        assert message in said
        assert len(said.splitlines()) == 1


def test_quick_completion(server: ServerProcess, api: httpx.Client) -> None:
    done = run("complete", "--url", f"{server.url}/v1", "--model-name", "demo", "-q", "Once upon", *GREEDY)
    assert (done.returncode, done.stderr) == (0, "")
    body = {"prompt": "Once upon", "temperature": 0, "max_tokens": 24}
    assert done.stdout == api.post("completions", json=body).json()["choices"][0]["text"] + "\n"


def test_lines_of_a_file_are_one_conversation(server: ServerProcess, api: httpx.Client) -> None:
    lines = "What is 1 plus 2?\n\nWhere does Luma live?\n/reset\nWhere does Luma live?\n"
    done = run("chat", "--url", server.url, *GREEDY, stdin=lines)
    first = chat_answer(api, "What is 1 plus 2?")
    second = chat_answer(api, "What is 1 plus 2?", first, "Where does Luma live?")
    assert done.stdout == f"{first}\n{second}\n{chat_answer(api, 'Where does Luma live?')}\n"
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (
            ["--url", "http://127.0.0.1:9/v1"],
            1,
            "no server is listening at http://127.0.0.1:9/v1/: start one with `jaxllm serve`",
        ),
        (["--url", "ftp://x"], 2, "url='ftp://x': expected a URL such as http://localhost:8000/v1"),
        (["--api-key", "wrong"], 2, "rejects the API key (--api-key)"),
        (["--model-name", "dmo"], 2, "has no model 'dmo'; did you mean 'demo'?"),
        (["--top-p", "7"], 2, "the server returned 400: top_p=7"),
    ],
)
def test_errors_are_one_line(server: ServerProcess, arguments: list[str], code: int, message: str) -> None:
    url = [] if "--url" in arguments else ["--url", server.url]
    done = run("chat", *url, *arguments, "-q", "hi")
    assert done.returncode == code, done.stderr
    assert message in done.stderr
    assert done.stderr.startswith("jaxllm: ")
    assert done.stderr.count("\n") == 1


def test_not_a_server_of_the_api(server: ServerProcess) -> None:
    done = run("chat", "--url", f"{server.url}/metrics", "-q", "hi")
    assert done.returncode in (1, 2)
    assert done.stderr.count("\n") == 1


class Terminal:
    """A program in a terminal of its own, and what its screen shows."""

    def __init__(self, arguments: tuple[str, ...]) -> None:
        self._master, slave = pty.openpty()
        environment = {**os.environ, "JAXLLM_API_KEY": KEY, "TERM": "dumb"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", IN_TERMINAL, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment,
            start_new_session=True,
        )
        os.close(slave)
        self._screen = ""

    def type(self, keys: str) -> None:
        """Press keys."""
        os.write(self._master, keys.encode())

    def interrupt(self) -> None:
        """Press Ctrl-C when the program waits: readline notices one just before it waits only at the next key."""
        status = Path(f"/proc/{self.process.pid}/stat")
        while status.read_text().rpartition(")")[2].split()[0] != "S":
            time.sleep(0.01)
        self.type("\x03")

    def read_until(self, text: str) -> str:
        """Wait until the screen shows `text` after what was read before; what came with it."""
        deadline = time.monotonic() + 60
        while text not in self._screen:
            ready, _, _ = select.select([self._master], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, self._screen
            try:
                self._screen += os.read(self._master, 4096).decode(errors="replace")
            except OSError:  # the program is gone, and its terminal with it
                pytest.fail(f"ended: {self._screen}")
        seen, _, self._screen = self._screen.partition(text)
        return seen + text

    def close(self) -> None:
        """End it, whatever it does."""
        self.process.kill()
        self.process.wait()
        os.close(self._master)


@contextmanager
def terminal(*arguments: str) -> Iterator[Terminal]:
    program = Terminal(arguments)
    try:
        yield program
    finally:
        program.close()


def test_chat_in_a_terminal(server: ServerProcess, api: httpx.Client) -> None:
    with terminal("chat", "--url", server.url, *GREEDY) as program:
        program.read_until("demo at ")
        program.read_until("> ")
        program.type("Where does Luma live?\n")
        program.read_until(chat_answer(api, "Where does Luma live?"))
        program.read_until(" tokens/s]")
        program.read_until("> ")
        program.type("/system Be brief.\n")
        program.read_until("> ")
        program.type("/system\n")
        program.read_until("system prompt: Be brief.")
        program.read_until("> ")
        program.type("/rest\n")
        program.read_until("unknown command /rest; did you mean 'reset'?")
        program.read_until("> ")
        program.type("/help\n")
        program.read_until("/reset   clear the conversation")
        program.read_until("> ")
        program.type("/exit\n")
        assert program.process.wait(30) == 0


def test_ctrl_c_stops_the_answer_and_then_the_program(server: ServerProcess, api: httpx.Client) -> None:
    with terminal("chat", "--url", server.url, "--ignore-eos", "--max-tokens", "450", "--temperature", "0") as program:
        program.read_until("> ")
        engine = server.engine()
        # Otherwise the answer may have ended before anybody looks.
        engine.suspend()
        try:
            program.type("Tell me a story.\n")
            program.read_until("story.\r\n")
            wait_until(lambda: in_flight(server) > 0)
            program.interrupt()
            program.read_until("[stopped]")
        finally:
            engine.resume()
        wait_until(lambda: in_flight(server) == 0)
        program.read_until("> ")
        # A line that is begun is thrown away, and the program goes on.
        program.type("half a line")
        program.read_until("half a line")
        program.interrupt()
        program.read_until("> ")
        program.interrupt()
        assert program.process.wait(30) == 0


def test_ctrl_d_leaves(server: ServerProcess) -> None:
    with terminal("complete", "--url", server.url) as program:
        program.read_until("> ")
        program.type("\x04")
        assert program.process.wait(30) == 0


def test_an_error_does_not_end_the_conversation(server: ServerProcess) -> None:
    with terminal("complete", "--url", server.url, "--max-tokens", "4", "--top-p", "7") as program:
        program.read_until("> ")
        program.type("Once\n")
        program.read_until("error: the server returned ")
        program.read_until("> ")


def in_flight(server: ServerProcess) -> int:
    answer = httpx.get(f"{server.url}/load", headers={"Authorization": f"Bearer {KEY}"})
    return int(answer.json()["server_load"])


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A certificate for 127.0.0.1, signed by itself, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    made, key = str(folder / "cert.pem"), str(folder / "key.pem")
    kind = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(["openssl", "req", *kind, "-keyout", key, "-out", made, *names], check=True, capture_output=True)
    return made, key


@pytest.fixture(scope="module")
def tls_server(tmp_path_factory: pytest.TempPathFactory, certificate: tuple[str, str]) -> Iterator[ServerProcess]:
    log = tmp_path_factory.mktemp("tls-server") / "log"
    made, key = certificate
    with running(log, *SMALL, "--ssl-certfile", made, "--ssl-keyfile", key) as process:
        yield process


def run_tls(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("SSL_CERT")}
    return subprocess.run(
        [*MAIN, *arguments], env={**plain, **environment}, capture_output=True, text=True, timeout=120, check=False
    )


def test_certificates_are_trusted_as_told(tls_server: ServerProcess, certificate: tuple[str, str]) -> None:
    url = f"https://127.0.0.1:{tls_server.port}"
    ask = ("complete", "--url", url, "-q", "Once upon", *GREEDY)
    by_flag, by_environment = run_tls(*ask, "--cacert", certificate[0]), run_tls(*ask, SSL_CERT_FILE=certificate[0])
    assert (by_flag.returncode, by_flag.stderr) == (0, "")
    assert (by_environment.returncode, by_environment.stderr) == (0, "")
    assert by_flag.stdout == by_environment.stdout
    insecure = run_tls(*ask, "--insecure")
    assert insecure.stdout == by_flag.stdout
    assert insecure.stderr.startswith("jaxllm: --insecure: ")
    assert insecure.stderr.count("\n") == 1


def test_certificate_errors_are_said_as_such(tls_server: ServerProcess, certificate: tuple[str, str]) -> None:
    url = f"https://127.0.0.1:{tls_server.port}"
    ask = ("chat", "-q", "hi", "--url")
    done = run_tls(*ask, url)
    assert done.returncode == 1
    assert f"the certificate of {url}/v1/ is not trusted: self-signed certificate" in done.stderr
    assert "--cacert" in done.stderr
    done = run_tls(*ask, f"https://localhost:{tls_server.port}", "--cacert", certificate[0])
    assert "is not trusted: Hostname mismatch" in done.stderr
    done = run_tls(*ask, url, "--cacert", "/nowhere.pem")
    assert "cannot read certificates from '/nowhere.pem'" in done.stderr
    done = run_tls(*ask, f"http://127.0.0.1:{tls_server.port}")
    assert "does the server expect TLS (https://)?" in done.stderr


def test_tls_with_a_server_that_speaks_none(server: ServerProcess) -> None:
    done = run_tls("chat", "-q", "hi", "--url", server.url.replace("http:", "https:"))
    assert "does not speak TLS" in done.stderr


def test_bench_serve_over_tls(tls_server: ServerProcess, certificate: tuple[str, str]) -> None:
    bench = ("bench", "serve", "--base-url", f"https://127.0.0.1:{tls_server.port}", "--num-prompts", "2",
             "--random-input-len", "8", "--random-output-len", "4")  # fmt: skip
    done = run_tls(*bench, "--cacert", certificate[0])
    assert done.returncode == 0, done.stderr
    assert "is not trusted" in run_tls(*bench).stderr
