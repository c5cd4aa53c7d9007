import io
import re

import pytest

from jaxllm.flags import FlagParser, add_engine_flags, engine_sections
from jaxllm.help_text import coloured, shows_colours


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module")
def parser() -> FlagParser:
    parser = FlagParser(
        prog="jaxllm serve", usage="%(prog)s [flags]", description="Serve a model to any OpenAI client."
    )
    parser.epilog = "examples:\n  jaxllm serve --port 9000\n\nThen:\n  curl http://localhost:9000/v1/models"
    parser.add_argument("--config", metavar="FILE", help="Read flags from a YAML file.")
    add_engine_flags(parser)
    return parser


def shown(parser: FlagParser, capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    with pytest.raises(SystemExit) as exit_info:
        parser.parse(arguments)
    assert exit_info.value.code == code
    captured = capsys.readouterr()
    return captured.err if code else captured.out


def flags_of(text: str) -> set[str]:
    return set(re.findall(r"^  (?:-\w(?: \S+)?, )?(--[\w-]+)", text, re.MULTILINE))


@pytest.mark.parametrize("flag", ["-h", "--help", "--help=", "--help=listgroup"])
def test_overview_lists_groups_on_one_screen(parser: FlagParser, capsys: pytest.CaptureFixture[str], flag: str) -> None:
    text = shown(parser, capsys, flag)
    assert text.startswith("usage: jaxllm serve")
    assert all(re.search(rf"^  {name} ", text, re.MULTILINE) for name in engine_sections())
    assert flags_of(text) == {"--help", "--config"}
    assert "--port 9000" in text
    assert "curl" not in text
    assert len(text.splitlines()) < 50


@pytest.mark.parametrize("word", ["cache", "CacheConfig", "CACHE", "cacheconfig"])
def test_a_group_by_its_name_here_and_in_vllm(
    parser: FlagParser, capsys: pytest.CaptureFixture[str], word: str
) -> None:
    found = flags_of(shown(parser, capsys, f"--help={word}"))
    assert {"--block-size", "--kv-cache-dtype"} <= found
    assert not {"--model", "--max-num-seqs", "--help"} & found


@pytest.mark.parametrize("word", ["max-model-len", "max_model_len", "--max-model-len", "MAX-MODEL-LEN"])
def test_one_flag(parser: FlagParser, capsys: pytest.CaptureFixture[str], word: str) -> None:
    assert flags_of(shown(parser, capsys, f"--help={word}")) == {"--max-model-len"}


def test_words_of_names_come_before_words_of_descriptions(
    parser: FlagParser, capsys: pytest.CaptureFixture[str]
) -> None:
    assert flags_of(shown(parser, capsys, "--help=num-seqs")) == {"--max-num-seqs"}
    assert "--enable-sleep-mode" in flags_of(shown(parser, capsys, "--help=wakes up"))


def test_everything_and_examples(parser: FlagParser, capsys: pytest.CaptureFixture[str]) -> None:
    whole = shown(parser, capsys, "--help=all")
    assert {"--config", "--model", "--max-num-seqs", "--speculative-config"} <= flags_of(whole)
    assert "curl" in whole
    assert "curl" in shown(parser, capsys, "--help=examples")


def test_what_nothing_has_is_an_error_that_names_the_nearest(
    parser: FlagParser, capsys: pytest.CaptureFixture[str]
) -> None:
    text = shown(parser, capsys, "--help=cahce", code=2)
    assert text.startswith("jaxllm serve: --help=cahce: no group and no flag has it; did you mean 'cache'?")


def test_only_an_equals_sign_gives_help_a_word(parser: FlagParser, capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(parser, capsys, "--help", "cache").startswith("usage:")


def test_short_help_is_shown_whole(capsys: pytest.CaptureFixture[str]) -> None:
    parser = FlagParser(prog="prog", description="Do little.")
    parser.add_argument("--much", help="How much.")
    assert flags_of(shown(parser, capsys, "--help")) == {"--help", "--much"}


@pytest.mark.parametrize("columns", [44, 80, 300])
def test_lines_fit_the_terminal(
    parser: FlagParser, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    longest = max(map(len, shown(parser, capsys, "--help=scheduler").splitlines()))
    assert longest <= min(columns, 100)
    assert columns < 100 or longest > 80


def test_colours_go_to_terminals_that_want_them() -> None:
    assert shows_colours(Terminal(), {"TERM": "xterm"})
    assert not shows_colours(io.StringIO(), {"TERM": "xterm"})
    assert not shows_colours(Terminal(), {"TERM": "xterm", "NO_COLOR": "1"})
    assert not shows_colours(Terminal(), {"TERM": "dumb"})
    assert shows_colours(Terminal(), {"NO_COLOR": ""})


def test_colours_change_nothing_else(parser: FlagParser, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(parser, capsys, "--help=all")
    bright = coloured(text)
    assert re.sub(r"\x1b\[\d*m", "", bright) == text
    assert "\n  \x1b[36m-h\x1b[0m, \x1b[36m--help\x1b[0m[=WORD]" in bright
    assert "\n\x1b[1moptions:\x1b[0m\n" in bright
