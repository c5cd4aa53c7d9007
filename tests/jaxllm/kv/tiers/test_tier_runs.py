"""Random runs of the scheduler with a host tier: no page ever holds anything but what its digest says.

Copies are made, finished, lost and damaged at any time, and the model on the host reads whatever comes back. With
files, engines end and others go on from what they have left.
"""

import tempfile
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from jaxllm.kv.groups import CacheGroups
from jaxllm.kv.tiers.disk.folder import DiskFolder
from jaxllm.kv.tiers.disk.page_file import HEADER_BYTES
from jaxllm.kv.tiers.host_pool import HostCopy, HostPool
from jaxllm.kv.tiers.loads import HOLD_REASON, Item, Load
from jaxllm.kv.tiers.promotions import Promotion
from jaxllm.requests.request import Request
from jaxllm.requests.sampling_params import SamplingParams
from tests.jaxllm.scheduler.test_scheduler_runs import Run, options_of, params_of

INT = 8
"""Bytes of a number."""


class FolderFiles:
    """`Files` of a folder."""

    def __init__(self, folder: DiskFolder, page_size: int, states: int) -> None:
        self.folder, self._page_size, self._states = folder, page_size, states

    def has(self, digest: bytes, part: int) -> bool:
        return self.folder.has(digest, part)

    def size(self, part: int) -> int:
        return INT if self.is_state(part) else self._page_size * INT

    def is_state(self, part: int) -> bool:
        return part == self._states

    def patience(self, num_tokens: int) -> float:
        return 1e6


class TierRun(Run):
    """A run whose copies are made when it is told to."""

    def __init__(self, *, room: int, folder: DiskFolder | None = None, **options: Any) -> None:
        super().__init__(**options)
        size = options["block_size"]
        self.tier = self.pages.use_tier(HostPool(room, size * INT))
        self.tier.loads.start = self._begin
        self.stores: deque[tuple[HostCopy, np.ndarray]] = deque()
        self.loads: deque[tuple[Load, Item]] = deque()
        self.promotions: deque[tuple[Promotion, HostCopy]] = deque()
        self.folder = folder
        if folder is not None:
            self.tier.use_files(FolderFiles(folder, size, self.tier.loads.states)).start = self._promote
            self.tier.on_used = folder.touch
        begin = self.pages.begin_load

        def begin_load(request: Request, headroom: int) -> bool:
            holds = begin(request, headroom)
            if holds:
                self.held[request.request_id].add(HOLD_REASON)
            return holds

        self.pages.begin_load = begin_load  # type: ignore[method-assign]

    @property
    def has_loads(self) -> bool:
        return self.tier.is_waiting

    def _promote(self, promotion: Promotion) -> None:
        self.promotions += ((promotion, copy) for copy in promotion.copies)

    def _begin(self, load: Load) -> None:
        self.loads += ((load, item) for item in load.items)

    def _view(self, item: Item) -> np.ndarray:
        """Where the contents of a page are."""
        return self.model.contents.reshape(-1, self.pages.block_size)[item.place]

    def copy(self, count: int) -> None:
        """Begin to copy what was offered."""
        size = self.pages.block_size
        for copy, page in self.tier.stores.next_pages(count, size * INT):
            self.stores.append((copy, self.model.contents.reshape(-1, size)[page].copy()))
        state = self.tier.stores.next_state(INT)
        if state is not None:
            assert self.model.kept is not None
            self.stores.append((state[0], np.array([self.model.kept[state[1]]], np.int64)))

    def finish_copies(self, count: int, fate: str) -> None:
        """Copies arrive at the host, or are lost, or damaged there."""
        host = self.tier.host
        for _ in range(min(count, len(self.stores))):
            copy, data = self.stores.popleft()
            found = host.fill(copy, data.view(np.uint8)) if fate != "lost" else None
            if fate == "damaged":
                host._memory[copy.slots[0], 0] ^= 1
            host.end_write(copy, found)
            if self.folder is not None and copy.state == "ready":
                self._write(self.folder, copy)

    def _write(self, folder: DiskFolder, copy: HostCopy) -> None:
        data = np.zeros(copy.size, np.uint8)
        if self.tier.host.read(copy, data):
            folder.write(copy.digest, copy.part, data, copy.checksum)

    def finish_promotions(self, count: int, fate: str) -> None:
        """Copies come from files, or are lost, or damaged there, or nobody waits for them any more."""
        promotions = self.tier.promotions
        if promotions is None:
            return
        if fate == "late":
            for promotion, _ in self.promotions:
                promotion.deadline = 0.0
            promotions.expire()
            promotions._paused_until = 0.0
        for _ in range(min(count, len(self.promotions))):
            promotion, copy = self.promotions.popleft()
            promotions.come(promotion, copy, None if fate == "lost" else self._read(copy, fate))
        self.let_go()

    def _read(self, copy: HostCopy, fate: str) -> int | None:
        assert self.folder is not None
        data = np.zeros(copy.size, np.uint8)
        try:
            wanted = self.folder.read(copy.digest, copy.part, data)
        except FileNotFoundError:
            self.folder.forget(copy.digest, copy.part)
            return None
        data[0] ^= fate == "damaged"
        return wanted if self.tier.host.fill(copy, data) == wanted else None

    def finish_loads(self, count: int, fate: str) -> None:
        """Pages come back, or are lost."""
        for _ in range(min(count, len(self.loads))):
            load, item = self.loads.popleft()
            buffer = np.zeros(item.copy.size, np.uint8)
            is_intact = self.tier.host.read(item.copy, buffer) and fate != "lost"
            values = buffer.view(np.int64)
            if not load.is_cancelled and fate != "lost":
                if item.copy.part != self.tier.loads.states:
                    self._view(item)[:] = values
                elif is_intact:
                    assert self.model.kept is not None
                    self.model.kept[item.place] = int(values[0])
            self.tier.loads.come(load, item, is_intact=is_intact)
        self.let_go()

    def let_go(self) -> None:
        for request in self.tier.take_released():
            self.release(request.request_id, HOLD_REASON)
        self.scheduler.check_integrity()
        self.replica.check()

    def drain(self) -> None:
        for _ in range(100 * len(self.live)):
            if not self.live:
                break
            for name, reasons in self.held.items():
                for reason in reasons - {HOLD_REASON}:
                    self.release(name, reason)
            self.finish_promotions(1000, "well")
            self.finish_loads(1000, "well")
            self.step()
        self.finish_copies(1000, "well")
        self.finish_promotions(1000, "well")
        self.finish_loads(1000, "well")
        assert not self.live, "starved"
        super().drain()
        assert not self.tier.is_waiting


TEXTS = np.random.default_rng(0).integers(0, 3, (5, 22))
TEXTS[2:4, :9] = TEXTS[0, :9]
prompts_of = st.builds(lambda text, length: TEXTS[text, :length].tolist(), st.integers(0, 4), st.integers(12, 22))
"""Few prompts, and some begin alike: all have been there before."""


@st.composite
def crowded(draw: st.DrawFn) -> dict[str, Any]:
    """Options of a run that has hardly more pages than one request needs."""
    options = draw(options_of())
    block_size = draw(st.integers(1, 3))
    groups = CacheGroups(options["windows"], block_size, options["max_num_batched_tokens"], margin=options["margin"])
    at_least = 1 + groups.most_pages(options["max_model_len"])
    pages = at_least + draw(st.integers(0, 6))
    return {**options, "caching": True, "policy": "fcfs", "block_size": block_size, "num_pages": pages}


class TierMachine(RuleBasedStateMachine):
    @initialize(options=crowded(), room=st.sampled_from([3, 20, 1000, 1000]), files=st.sampled_from([0, 5, 1000]))
    def start(self, options: dict[str, Any], room: int, files: int) -> None:
        self.scratch = tempfile.TemporaryDirectory()
        self.options, self.files = {**options, "room": room}, files
        self.run = self._begin()

    def _begin(self) -> TierRun:
        """With files for so many pages, if any; those that there are already are found."""
        if not self.files:
            return TierRun(**self.options)
        size = self.options["block_size"] * INT + HEADER_BYTES
        return TierRun(**self.options, folder=DiskFolder(Path(self.scratch.name), bytes(32), self.files * size))

    @rule()
    def restart(self) -> None:
        self.run.drain()
        self.run = self._begin()

    @rule(count=st.integers(1, 40), fate=st.sampled_from(["well", "well", "lost", "damaged", "late"]))
    def finish_promotions(self, count: int, fate: str) -> None:
        self.run.finish_promotions(count, fate)

    @rule(prompt=prompts_of, params=params_of, salt=st.sampled_from([None, None, "a"]))
    def add(self, prompt: list[int], params: SamplingParams, salt: str | None) -> None:
        self.run.add(prompt, params, 0, salt)

    @rule(
        prompt=prompts_of,
        count=st.integers(1, 60),
        fate=st.sampled_from(["well", "well", "lost", "damaged"]),
        copies=st.sampled_from([100, 100, 4, 1]),
    )
    def serve(self, prompt: list[int], count: int, fate: str, copies: int) -> None:
        """As engines do it: much is copied after each step, and comes back before one."""
        self.run.add(prompt, SamplingParams(max_tokens=2, ignore_eos=True))
        for _ in range(count):
            if not self.run.live:
                break
            self.run.step()
            self.run.copy(copies)
            self.run.finish_copies(100, fate)
            self.run.finish_promotions(100, "well")
            self.run.finish_loads(100, "well")

    @rule(count=st.integers(1, 8), copies=st.integers(0, 20))
    def step(self, count: int, copies: int) -> None:
        for _ in range(count):
            self.run.step()
            self.run.copy(copies)

    @rule(count=st.integers(1, 40), fate=st.sampled_from(["well", "well", "well", "lost", "damaged"]))
    def finish_copies(self, count: int, fate: str) -> None:
        self.run.finish_copies(count, fate)

    @rule(count=st.integers(1, 40), fate=st.sampled_from(["well", "well", "well", "lost"]))
    def finish_loads(self, count: int, fate: str) -> None:
        self.run.finish_loads(count, fate)

    @rule(data=st.data(), during=st.booleans())
    def abort(self, data: st.DataObject, during: bool) -> None:
        if self.run.live:
            name = data.draw(st.sampled_from(self.run.live))
            if during:
                self.run.step(abort=name)
            else:
                self.run.finish(name)

    @rule()
    def reset(self) -> None:
        idle = self.run.scheduler.num_running == 0
        assert self.run.scheduler.reset_prefix_cache() == idle
        self.run.let_go()
        if idle:
            assert self.run.pages.num_cached_pages == 0
            assert not len(self.run.tier.host)

    def teardown(self) -> None:
        if hasattr(self, "run"):
            self.run.drain()
            self.scratch.cleanup()


TierMachine.TestCase.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
TestTierMachine = TierMachine.TestCase


@pytest.mark.parametrize(("windows", "snapshots"), [((0,), None), ((0, 4), None), ((0,), 3)])
def test_a_crowd_of_few_prompts(windows: tuple[int, ...], snapshots: int | None) -> None:
    """The same prompts again and again, with copies that are behind: much comes back, and all of it is right."""
    rng = np.random.default_rng(0)
    groups = CacheGroups(windows, 2, 8, margin=1)
    run = TierRun(
        room=1000, num_pages=3 + groups.most_pages(24), block_size=2, caching=True, ahead=1, windows=windows, margin=1,
        snapshots=snapshots, mamba_block_size=4, max_num_seqs=3, max_num_batched_tokens=8, max_model_len=24,
        policy="fcfs", long_prefill_token_threshold=0,
    )  # fmt: skip
    for _ in range(150):
        run.add(TEXTS[rng.integers(0, 5), : rng.integers(12, 22)].tolist(), SamplingParams(max_tokens=2))
        for _ in range(rng.integers(1, 12)):
            run.step()
            run.copy(int(rng.integers(0, 4)))
            run.finish_copies(int(rng.integers(0, 9)), "well")
            run.finish_loads(int(rng.integers(0, 9)), "well")
    run.drain()
    assert run.tier.loads.num_hits > 100
    assert run.tier.stores.num_dropped > 0


@pytest.mark.parametrize(("windows", "snapshots"), [((0,), None), ((0, 4), None), ((0,), 3)])
def test_a_crowd_comes_back_after_a_restart(tmp_path: Path, windows: tuple[int, ...], snapshots: int | None) -> None:
    """What the first engine has computed, the second one has from files."""
    groups = CacheGroups(windows, 2, 8, margin=1)
    options: dict[str, Any] = {
        "room": 1000, "num_pages": 3 + groups.most_pages(24), "block_size": 2, "caching": True, "ahead": 1,
        "windows": windows, "margin": 1, "snapshots": snapshots, "mamba_block_size": 4, "max_num_seqs": 3,
        "max_num_batched_tokens": 8, "max_model_len": 24, "policy": "fcfs", "long_prefill_token_threshold": 0,
    }  # fmt: skip
    promoted = []
    for _ in range(2):
        run = TierRun(**options, folder=DiskFolder(tmp_path, bytes(32), 1 << 20))
        for text in TEXTS:
            run.add(text[:18].tolist(), SamplingParams(max_tokens=2))
            while run.live:
                run.step()
                run.copy(100)
                run.finish_copies(100, "well")
                run.finish_promotions(100, "well")
                run.finish_loads(100, "well")
        run.drain()
        assert run.tier.promotions is not None
        promoted.append(run.tier.loads.num_hits if run.tier.promotions.num_hits else 0)
    assert promoted[1] >= 5 * 12 > promoted[0]
