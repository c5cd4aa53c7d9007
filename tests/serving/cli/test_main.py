import sys
import types
from pathlib import Path

import pytest

import jaxllm
from jaxllm.errors import CapacityError, ConfigError, EngineError, JaxLLMError, RequestError
from jaxllm.flags import FlagParser
from jaxllm.serving.cli import main as cli
from jaxllm.serving.cli.main import Entry
from tests.conftest import RunPython


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A sub-command `probe` that returns the number it is given."""
    module = types.ModuleType("probe_command")

    def add_arguments(parser: FlagParser) -> None:
        parser.add_argument("code", type=int)

    module.__dict__.update(HELP="Return a number.", add_arguments=add_arguments, run=lambda args: args.code)
    monkeypatch.setitem(sys.modules, "probe_command", module)
    monkeypatch.setitem(cli.COMMANDS, "probe", Entry("probe_command", "Return a number."))
    return module


def fail_with(command: types.ModuleType, error: BaseException) -> int:
    def run(_args: object) -> int:
        raise error

    command.__dict__["run"] = run
    return cli.main(["probe", "0"])


def test_result_of_the_sub_command_is_the_exit_code(command: types.ModuleType) -> None:
    assert cli.main(["probe", "0"]) == 0
    assert cli.main(["probe", "7"]) == 7


def test_help_lists_every_sub_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    text = capsys.readouterr().out
    for name, entry in cli.COMMANDS.items():
        assert f"  {name} " in text
        assert entry.summary in " ".join(text.split())


def test_no_sub_command_shows_the_help_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    assert "sub-commands:" in capsys.readouterr().out


def test_help_of_a_sub_command(command: types.ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        cli.main(["probe", "--help"])
    assert exit_info.value.code == 0
    text = capsys.readouterr().out
    assert text.startswith("usage: jaxllm probe [flags]")
    assert "Return a number." in text


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"jaxllm {jaxllm.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["genrate"], "unknown sub-command 'genrate'; did you mean 'generate'?"),
        (["--versoin"], "unknown flag '--versoin'; did you mean '--version'?"),
    ],
)
def test_unknown_names(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("wrong\n  option"), 2),
        (RequestError("wrong option", "top_p"), 2),
        (CapacityError("wrong option"), 2),
        (EngineError("wrong option"), 1),
    ],
)
def test_errors_are_one_line(
    command: types.ModuleType, error: JaxLLMError, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fail_with(command, error) == code
    assert capsys.readouterr().err == "jaxllm: wrong option\n"


def test_interrupt_is_130(command: types.ModuleType) -> None:
    assert fail_with(command, KeyboardInterrupt()) == 130


def test_a_bug_keeps_its_traceback(command: types.ModuleType) -> None:
    with pytest.raises(ZeroDivisionError):
        fail_with(command, ZeroDivisionError())


def test_closed_pipe_is_quiet(run_python: RunPython, tmp_path: Path) -> None:
    reader = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-m', 'jaxllm.serving.cli.main', '--help'],\n"
        "                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)\n"
        "child.stdout.close()\n"
        "error = child.stderr.read()\n"
        "print(child.wait(), error)\n"
    )
    assert run_python("-c", reader).stdout == "0 b''\n"


@pytest.mark.parametrize("name", [*(name for name in cli.COMMANDS if name != "bench"), "bench serve"])
def test_every_sub_command_follows_the_protocol(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        cli.main([*name.split(), "--help"])
    assert exit_info.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: jaxllm {name} ")


def test_a_group_of_sub_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("usage: jaxllm bench SUB-COMMAND")
    assert "  serve       Measure throughput" in text
    assert cli.main(["bench"]) == 2
    assert cli.main(["bench", "server"]) == 2
    assert "unknown sub-command 'server'; did you mean 'serve'? (see jaxllm bench --help)" in capsys.readouterr().err


def test_help_loads_nothing_heavy(run_python: RunPython) -> None:
    code = (
        "import sys\nfrom jaxllm.serving.cli.main import main\nmain(['--help'])\nprint(*sys.modules, file=sys.stderr)"
    )
    loaded = set(run_python("-c", code).stderr.split())
    assert "jaxllm.serving.cli.main" in loaded
    assert not loaded & {"jax", "flax", "numpy", "transformers", "msgspec", "rich", "psutil", "torch"}


def test_the_package_can_be_run(run_python: RunPython) -> None:
    done = run_python("-m", "jaxllm", "--version")
    assert (done.returncode, done.stdout) == (0, f"jaxllm {jaxllm.__version__}\n"), done.stderr
    assert run_python("-m", "jaxllm", "severe").returncode == 2
