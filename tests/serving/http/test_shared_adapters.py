"""Adapters of several processes: what one changes, all know."""

import os
import random
import subprocess
import sys
from collections.abc import Iterator

import pytest

from jaxllm.serving.http.adapters import ServedAdapters
from jaxllm.serving.http.errors import HttpError
from jaxllm.serving.http.shared_adapters import SharedAdapters
from jaxllm.serving.telemetry.shared_metrics import open_file


@pytest.fixture
def handle() -> Iterator[int]:
    with open_file() as file:
        yield file.fileno()


def test_what_one_changes_the_others_know(handle: int) -> None:
    one, two = (ServedAdapters(("demo",), SharedAdapters(handle)) for _ in range(2))
    assert not two.names
    one.add(one.make("sql", "/sql"))
    assert two.knows("sql")
    with pytest.raises(HttpError, match="is loaded"):
        two.make("sql", "/other")
    two.add(two.make("chat", "/chat"), "other")
    found = one.get("chat")
    assert found is not None
    assert (found.parent, found.request.lora_path, found.request.lora_int_id) == ("other", "/chat", 2)
    assert one.names == two.names == ["sql", "chat"]
    one.remove("sql")
    assert two.names == ["chat"]
    assert two.find("sql") is None


def test_the_first_process_says_what_is_served_from_the_start(handle: int) -> None:
    given = ServedAdapters(("demo",))
    given.add(given.make("sql", "/sql"))
    one = ServedAdapters(("demo",), SharedAdapters(handle))
    assert not one.have_begun
    one.begin_with(given)
    one.remove("sql")
    again = ServedAdapters(("demo",), SharedAdapters(handle))
    assert again.have_begun
    again.begin_with(given)
    assert not again.names, "what was unloaded does not come back with a process that is started again"


def test_lists_of_all_sizes_replace_each_other(handle: int) -> None:
    writer, reader = (ServedAdapters(("demo",), SharedAdapters(handle)) for _ in range(2))
    draw, names = random.Random(0), dict[str, str]()
    for _ in range(300):
        name = f"name-{draw.randrange(20)}"
        if names.pop(name, None) is None:
            names[name] = "/" + "x" * draw.randrange(400)
            writer.add(writer.make(name, names[name]))
        else:
            writer.remove(name)
        assert {each.request.lora_name: each.request.lora_path for each in reader} == names
    assert os.fstat(handle).st_size < 40_000, "old lists are written over"


def test_processes_do_not_lose_changes_of_others(handle: int) -> None:
    program = (
        "import sys\n"
        "from jaxllm.serving.http.adapters import ServedAdapters\n"
        "from jaxllm.serving.http.shared_adapters import SharedAdapters\n"
        "adapters = ServedAdapters(('demo',), SharedAdapters(int(sys.argv[1])))\n"
        "for number in range(200):\n"
        "    name = f'{sys.argv[2]}-{number}'\n"
        "    adapters.add(adapters.make(name, '/folder'))\n"
        "    if number % 2: adapters.remove(name)\n"
    )
    command = [sys.executable, "-c", program, str(handle)]
    running = [subprocess.Popen([*command, name], pass_fds=(handle,)) for name in ("a", "b", "c")]
    assert [process.wait(60) for process in running] == [0, 0, 0]
    served = ServedAdapters(("demo",), SharedAdapters(handle))
    assert set(served.names) == {f"{name}-{number}" for name in "abc" for number in range(0, 200, 2)}


def test_no_adapter_has_the_number_of_one_that_was_removed(handle: int) -> None:
    one, two = (ServedAdapters(("demo",), SharedAdapters(handle)) for _ in range(2))
    numbers = list[int]()
    for index in range(6):
        here, there = (one, two) if index % 2 else (two, one)
        made = here.make("sql", "/sql")
        numbers.append(made.lora_int_id)
        here.add(made)
        assert there.make("sql", "/sql", load_inplace=True).lora_int_id == made.lora_int_id
        there.remove("sql")
    assert len(set(numbers)) == len(numbers)
