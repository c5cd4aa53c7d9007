import json
from pathlib import Path
from typing import Any

import pytest

from jaxllm.errors import ConfigError
from jaxllm.serving.bench.sweep.parameters import Setting, are_linked, read_links, read_settings


def file(folder: Path, given: Any) -> str:
    (folder / "settings.json").write_text(json.dumps(given))
    return str(folder / "settings.json")


@pytest.mark.parametrize(
    ("command", "flags", "result"),
    [
        ("jaxllm serve demo --port 9", {"max_num_seqs": 8}, "jaxllm serve demo --port 9 --max-num-seqs 8"),
        ("serve --max-num-seqs 4 --port 9", {"max_num_seqs": 8}, "serve --port 9 --max-num-seqs 8"),
        ("serve --max_num_seqs=4 --port 9", {"max-num-seqs": 8}, "serve --port 9 --max-num-seqs 8"),
        ("bench --goodput ttft:5 tpot:6 --port 9", {"goodput": "e2el:7"}, "bench --port 9 --goodput e2el:7"),
        ("bench --temperature -1 --port 9", {"temperature": 0.5}, "bench --port 9 --temperature 0.5"),
        ("serve --enable-x --port 9", {"enable_x": False}, "serve --port 9 --no-enable-x"),
        ("serve --max-num-seqs 4 Qwen/X", {"max_num_seqs": 2}, "serve Qwen/X --max-num-seqs 2"),
        ("serve --max-num-seqs=4 Qwen/X", {"max_num_seqs": 2}, "serve Qwen/X --max-num-seqs 2"),
        ("serve --enable-x Qwen/X", {"enable_x": False}, "serve Qwen/X --no-enable-x"),
        ("serve --api-key a b -O 2 Qwen/X", {"api_key": "c"}, "serve -O 2 Qwen/X --api-key c"),
        ("serve --no-enable-x", {"enable_x": True}, "serve --enable-x"),
        ("serve", {"extra_body": {"a": 1}}, 'serve --extra-body {"a":1}'),
        ("serve", {"compile.some_key": 3}, "serve --compile.some_key 3"),
    ],
)
def test_flags_take_the_place_of_those_of_the_command(command: str, flags: dict[str, Any], result: str) -> None:
    found = [word.replace(" ", "") for word in Setting(flags).applied_to(command.split())]
    assert found == result.split()


def test_both_forms_of_a_file(tmp_path: Path) -> None:
    found = read_settings(file(tmp_path, [{"a": 1}, {"a": 2, "_benchmark_name": "two"}]), "serve-params")
    assert [setting.name for setting in found] == ["a=1", "two"]
    assert [setting.flags for setting in found] == [{"a": 1}, {"a": 2}]
    assert found == [Setting({"a": 1}), Setting({"a": 2}, "two")]
    (named,) = read_settings(file(tmp_path, {"x/y": {"a": 1}}), "serve-params")
    assert (named.name, named.flags) == ("x_y", {"a": 1})
    assert read_settings(None, "serve-params") == [Setting()]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "expected a list of objects"),
        ([3], "3 is not an object of flags"),
        ({"a": 3}, "3 is not an object of flags"),
        ([{"a": 1}, {"a": 1}], "two settings have the name 'a=1'"),
    ],
)
def test_wrong_files(given: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        read_settings(file(tmp_path, given), "serve-params")
    with pytest.raises(ConfigError, match="cannot read --serve-params"):
        read_settings(str(tmp_path / "absent"), "serve-params")


def test_links() -> None:
    links = read_links("max_num_seqs=max-concurrency, a=b")
    assert links == [("max_num_seqs", "max-concurrency"), ("a", "b")]
    server = Setting({"max-num-seqs": 4, "a": 1})
    assert are_linked(server, Setting({"max_concurrency": 4, "b": 1}), links)
    assert not are_linked(server, Setting({"max_concurrency": 8, "b": 1}), links)
    assert not are_linked(Setting(), Setting(), links)
    with pytest.raises(ConfigError, match="link_vars="):
        read_links("a")
