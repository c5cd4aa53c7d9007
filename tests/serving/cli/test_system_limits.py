"""A process with too little of something says what, and needs neither of its standard streams."""

import errno
import resource
import subprocess
import sys

import pytest

from jaxllm.errors import ConfigError
from jaxllm.serving.cli import system_limits
from jaxllm.serving.cli.system_limits import exhausted, raise_file_limit


@pytest.mark.parametrize(("given", "set_to"), [((24, 65536), 65536), ((1024, 4096), 4096), ((1024, -1), 65536)])
def test_as_many_files_as_allowed(given: tuple[int, int], set_to: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: given)
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: found.append(limits))
    raise_file_limit()
    assert found == [(set_to, given[1])]


def test_too_few_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (24, 24))
    with pytest.raises(ConfigError, match=r"limit of open files is 24 \(ulimit -n\), but the server needs at least 64"):
        raise_file_limit()


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (OSError(errno.EMFILE, "x"), "ulimit -n"),
        (BlockingIOError(errno.EAGAIN, "x"), "ulimit -u"),
        (OSError(errno.ENOMEM, "x"), "ulimit -v"),
        (MemoryError(), "ulimit -v"),
        (RuntimeError("can't start new thread"), "ulimit -u"),
    ],
)
def test_what_is_exhausted_is_told(error: BaseException, advice: str) -> None:
    assert advice in str(exhausted(error))


def test_other_errors_are_bugs() -> None:
    assert exhausted(OSError(errno.ENOENT, "x")) is None
    assert exhausted(RuntimeError("x")) is None
    assert system_limits.LEAST_FILES < system_limits.MOST_WANTED


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1), (0, 1, 2)])
def test_closed_streams_are_opened_on_nothing(closed: tuple[int, ...]) -> None:
    code = (
        "import os, sys\n"
        "from jaxllm.serving.cli.main import main\n"
        "code = main(['--version'])\n"
        "names = [os.readlink(f'/proc/self/fd/{n}') for n in CLOSED]\n"
        "os._exit(code or (0 if all(n == '/dev/null' for n in names) and sys.stdout and sys.stderr else 3))\n"
    ).replace("CLOSED", repr(closed))

    # By a shell: closing them between fork and exec is not safe in a process with threads.
    redirected = " ".join(f"{number}>&-" for number in closed)
    command = ["sh", "-c", f'exec "$0" -c "$1" {redirected}', sys.executable, code]
    assert subprocess.run(command, check=False, stdin=None, timeout=120).returncode == 0
