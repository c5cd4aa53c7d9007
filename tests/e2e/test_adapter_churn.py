"""Adapters that come and go in an engine while requests run: answers are right, and nothing is left over."""

import gc
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from jaxllm.adapters.adapters import Adapters
from jaxllm.engine.engine import Engine
from jaxllm.requests.lora_request import LoRARequest
from jaxllm.requests.request import Request
from jaxllm.serving.http.adapters import ServedAdapters
from jaxllm.serving.http.shared_adapters import SharedAdapters
from jaxllm.serving.telemetry.shared_metrics import open_file
from tests.adapter_folders import write_adapter
from tests.e2e.driving import make_engine, request, run
from tests.e2e.test_adapters import OPTIONS, prompts

FOLDERS, SLOTS, ON_HOST = 6, 2, 3
MAX_GROWTH = 24 * 2**20
"""Bytes by which the process may grow. One adapter of `demo` takes more than 100 kB on the host: 1,000 would take
several times as many."""


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    engine = make_engine(enable_lora=True, max_loras=SLOTS, max_lora_rank=8, max_cpu_loras=ON_HOST, **OPTIONS)
    yield engine
    engine.close()


def asking(name: str, prompt: list[int], lora: LoRARequest | None) -> Request:
    made = request(name, prompt, temperature=0.0, max_tokens=5, ignore_eos=True)
    made.lora_request = lora
    return made


def adapters_of(engine: Engine) -> Adapters[Request]:
    assert engine.adapters is not None
    return engine.adapters


class Traffic:
    """Requests with adapters of these folders and with none; each must get what it gets alone."""

    def __init__(self, engine: Engine, folders: list[Path]) -> None:
        self._engine, self._prompts = engine, prompts(8, seed=3)
        self._found: dict[str, list[int]] = {}
        self._expected: dict[str, list[int]] = {}
        self._wanted = {
            (path, index): run(engine, [asking("0", prompt, LoRARequest("wanted", 1, path) if path else None)])["0"]
            for path in ("", *map(str, folders))
            for index, prompt in enumerate(self._prompts)
        }
        different = {tuple(each.token_ids) for each in self._wanted.values()}
        assert len(different) > len(self._wanted) // 2, "adapters that change nothing prove nothing"
        assert engine.control.remove_lora("wanted")

    def add(self, name: str, which: int, lora: LoRARequest | None) -> None:
        which %= len(self._prompts)
        self._expected[name] = self._wanted[lora.lora_path if lora else "", which].token_ids
        self._engine.add_request(asking(name, self._prompts[which], lora))

    def load(self, lora: LoRARequest) -> None:
        again = False
        while not self._engine.control.add_lora(lora.lora_name, lora.lora_path, again=again):
            again = True
            self.step()

    def step(self) -> None:
        for output in self._engine.step():
            assert output.refusal is None
            self._found.setdefault(output.request_id, []).extend(output.token_ids)
            if output.finished:
                assert self._found.pop(output.request_id) == self._expected.pop(output.request_id)

    def step_until(self, num_unfinished: int) -> None:
        while len(self._expected) > num_unfinished:
            self.step()


@pytest.mark.parametrize("count", [40, pytest.param(1000, marks=pytest.mark.exhaustive)])
def test_loading_and_unloading_under_traffic(engine: Engine, tmp_path: Path, count: int) -> None:
    """Adapters with names that come back and names that do not; some are unloaded while requests run with them."""
    folders = [write_adapter(tmp_path / str(seed), seed + 1, scale=0.3) for seed in range(FOLDERS)]
    traffic = Traffic(engine, folders)
    names = [f"comes-back-{index % 3}" if index % 2 else f"new-{index}" for index in range(count)]
    process, warm = psutil.Process(), 0
    for index, name in enumerate(names):
        lora = LoRARequest(name, 1, str(folders[index % FOLDERS]))
        traffic.load(lora)
        traffic.add(f"{index}", index, lora)
        traffic.add(f"{index} base", index + 1, None)
        if index % 4 == 0:
            traffic.step()
        # Those that have it go on, and one that is on its way comes after.
        assert engine.control.remove_lora(name)
        if index % 5 == 0:
            traffic.add(f"{index} late", index + 2, lora)
        traffic.step_until(6)
        if index == count // 2:
            gc.collect()
            warm = process.memory_info().rss
    traffic.step_until(0)
    gc.collect()
    growth = process.memory_info().rss - warm
    assert growth < MAX_GROWTH
    adapters = adapters_of(engine)
    adapters.check_integrity(())
    assert adapters.num_on_host <= ON_HOST
    engine.scheduler.check_integrity()
    stats = engine.stats()
    assert stats.running_loras == stats.waiting_loras == ()
    # Those that came late are known. Removed, they leave nothing.
    for name in names:
        engine.control.remove_lora(name)
    assert adapters.num_known == adapters.num_on_host == 0


def test_a_request_on_its_way_while_another_process_unloads(engine: Engine, tmp_path: Path) -> None:
    """It is answered, and the folder that is loaded under the name next is what the name means."""
    folder, (prompt,) = tmp_path / "sql", prompts(1, seed=4)
    with open_file() as file:
        one, two = (ServedAdapters(("demo",), SharedAdapters(file.fileno())) for _ in range(2))

        def load(process: ServedAdapters, seed: int) -> list[int]:
            """What an adapter of this seed says, once this process has loaded it."""
            write_adapter(folder, seed, scale=0.3)
            lora, again = process.make("sql", str(folder)), False
            while not engine.control.add_lora("sql", str(folder), lora.lora_int_id, again=again):
                again = True
                engine.step()
            process.add(lora)
            return run(engine, [asking("0", prompt, process.find("sql"))])["0"].token_ids

        answers = []
        for seed in range(3):
            answers.append(load(one, seed))
            on_its_way = two.find("sql")
            one.remove("sql")
            assert engine.control.remove_lora("sql")
            assert run(engine, [asking("late", prompt, on_its_way)])["late"].token_ids == answers[-1]
            assert two.find("sql") is None
        assert len(set(map(tuple, answers))) == len(answers), "the old content is served under the name"
