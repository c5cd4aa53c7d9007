"""Completion in real shells: bash and zsh at a pseudo-terminal where Tab is pressed, fish by its own `complete -C`."""

import os
import pty
import select
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from jaxllm.serving.cli import main as cli
from jaxllm.serving.cli.completion import SHELLS, script
from tests.conftest import RunPython

START = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], "source {script}\n"),
    "zsh": (
        ["zsh", "-f", "-i"],
        "autoload -U compinit; compinit -u -D; source {script}; compdef _shtab_jaxllm jaxllm\n",
    ),
}


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {}
    for shell in SHELLS:
        found[shell] = tmp_path_factory.mktemp("completion") / f"jaxllm.{shell}"
        found[shell].write_text(script(shell), encoding="utf-8")
    return found


def needs(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")


def pressed_tab(shell: str, file: Path, typed: str, wanted: str) -> str:
    """What an interactive shell shows after `typed` and Tab, up to `wanted` or ten seconds."""
    command, source = START[shell]
    environment = {**os.environ, "TERM": "dumb", "PS1": "$ ", "HOME": str(file.parent)}
    # Not `pty.fork`: JAX's threads may hold locks that a forked interpreter waits for.
    terminal, end = pty.openpty()
    shell_process = subprocess.Popen(
        command, stdin=end, stdout=end, stderr=end, env=environment, start_new_session=True
    )
    os.close(end)
    seen = ""
    try:
        os.write(terminal, f"{source.format(script=file)}echo re''ady\n".encode())
        seen = read_until(terminal, "ready")
        os.write(terminal, f"{typed}\t".encode())
        seen = read_until(terminal, wanted)
    finally:
        os.close(terminal)
        shell_process.kill()
        shell_process.wait()
    return seen


def read_until(terminal: int, wanted: str) -> str:
    seen, end = "", time.monotonic() + 10
    while wanted not in seen and time.monotonic() < end:
        if select.select([terminal], [], [], 0.1)[0]:
            seen += os.read(terminal, 65536).decode(errors="replace")
    return seen


@pytest.mark.parametrize("shell", list(START))
@pytest.mark.parametrize(
    ("typed", "wanted"),
    [
        ("jaxllm coll", "jaxllm collect-env"),
        ("jaxllm serve some/model --max-model", "some/model --max-model-len"),
        ("jaxllm plan --kv-cache-dtype fp8_e4", "fp8_e4m3"),
        ("jaxllm bench sweep pl", "sweep plot"),
    ],
)
def test_tab_completes_the_rest(scripts: dict[str, Path], shell: str, typed: str, wanted: str) -> None:
    needs(shell)
    assert wanted in pressed_tab(shell, scripts[shell], typed, wanted)


@pytest.mark.parametrize(
    ("typed", "wanted"),
    [
        ("jaxllm coll", "collect-env\tPrint the information"),
        ("jaxllm serve some/model --max-model", "--max-model-len\tMaximum number of tokens"),
        ("jaxllm plan --kv-cache-dtype fp8_e4", "fp8_e4m3"),
        ("jaxllm bench sweep pl", "plot"),
    ],
)
def test_fish_completes_the_rest(scripts: dict[str, Path], typed: str, wanted: str) -> None:
    needs("fish")
    command = ["fish", "--no-config", "-c", f"source {scripts['fish']}; complete -C '{typed}'"]
    assert wanted in subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def test_flags_without_effect_are_not_offered(scripts: dict[str, Path]) -> None:
    for file in scripts.values():
        assert "disable-custom-all-reduce" not in file.read_text(encoding="utf-8")


def test_another_shell_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        cli.main(["completion", "csh"])
    assert exit_info.value.code == 2
    assert "choose from" in capsys.readouterr().err


def test_jax_is_not_loaded(run_python: RunPython) -> None:
    code = (
        "import sys\nfrom jaxllm.serving.cli.main import main\nmain(['completion', 'bash'])\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    done = run_python("-c", code)
    assert "complete -o" in done.stdout
    assert not set(done.stderr.split()) & {"jax", "flax", "transformers", "torch"}
