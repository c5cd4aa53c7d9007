"""The engine in a process of its own, from a script's point of view: same tokens, typed errors, nothing left behind."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from jaxllm import LLM, ConfigError, EngineError, RequestError, SamplingParams
from jaxllm.serving.ipc.client.background import BackgroundEngine
from jaxllm.serving.ipc.messages import Call
from jaxllm.serving.llm.llm_engine import LLMEngine

OPTIONS: dict[str, Any] = {"optimization_level": 0, "max_num_seqs": 4, "max_num_batched_tokens": 16}
"""As in other tests of engine processes, so that all of them find what one has compiled."""
PROMPTS = ["Once upon a time", "Mira is", "1 + 2 ="]

SCRIPT = """
from jaxllm import LLM, SamplingParams

# No `if __name__ == "__main__"`: it must not run twice.
print("begin")
llm = LLM(background_engine=True, optimization_level=0, max_num_seqs=4, max_num_batched_tokens=16)
print(llm.llm_engine.engine._connections[0].pid, flush=True)
(output,) = llm.generate("Once upon a time", SamplingParams(temperature=0, max_tokens=8), use_tqdm=False)
print(repr(output.outputs[0].text))
print("end", flush=True)
input()
"""


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(background_engine=True, enable_sleep_mode=True, **OPTIONS) as llm:
        yield llm


def engine_of(llm: LLM) -> BackgroundEngine:
    engine = llm.llm_engine.engine
    assert isinstance(engine, BackgroundEngine)
    return engine


def assert_close(ours: Any, theirs: Any) -> None:
    """Compare log-probabilities by place. Requests may share other steps here and there, which round differently."""
    assert (ours is None) == (theirs is None)
    for one, other in zip(ours or (), theirs or (), strict=True):
        assert (one is None) == (other is None)
        values, expected = ({token: found.logprob for token, found in (place or {}).items()} for place in (one, other))
        assert values == pytest.approx(expected, abs=1e-4)


def test_the_same_tokens_as_in_this_process(llm: LLM) -> None:
    greedy = SamplingParams(temperature=0, max_tokens=24, logprobs=2, prompt_logprobs=1)
    seeded = SamplingParams(seed=5, max_tokens=24, n=2, stop=[" the"])
    with LLM(**OPTIONS) as here:
        for params in (greedy, seeded):
            ours = llm.generate(PROMPTS, params, use_tqdm=False)
            theirs = here.generate(PROMPTS, params, use_tqdm=False)
            for one, other in zip(ours, theirs, strict=True):
                assert one.prompt_token_ids == other.prompt_token_ids
                assert_close(one.prompt_logprobs, other.prompt_logprobs)
                for mine, its in zip(one.outputs, other.outputs, strict=True):
                    assert (mine.token_ids, mine.text, mine.finish_reason) == (
                        its.token_ids,
                        its.text,
                        its.finish_reason,
                    )
                    assert_close(mine.logprobs, its.logprobs)


def test_the_answer_to_an_interrupted_call_is_nobodys(llm: LLM) -> None:
    engine = engine_of(llm)
    engine._calls += 1
    engine._connections[0].send(Call(engine._calls, "is_paused"))
    assert engine._call("reset_prefix_cache") == [True]
    assert engine._call("is_paused") == [False]


def test_another_thread_wakes_up_an_engine_whose_stream_is_read(llm: LLM) -> None:
    stream = llm.stream("Once upon a time", SamplingParams(temperature=0, max_tokens=400, ignore_eos=True))
    got = len(next(stream).token_ids)
    llm.sleep(0, mode="keep")
    with ThreadPoolExecutor(2) as pool:
        rest = pool.submit(list, stream)
        while not (llm._runs.lock.locked() or rest.done()):
            pass
        pool.submit(llm.wake_up).result(60)
        assert got + sum(len(delta.token_ids) for delta in rest.result(60)) == 400


def test_wrong_requests_are_refused_at_once_and_harm_nobody(llm: LLM) -> None:
    with pytest.raises(RequestError, match="max_model_len"):
        llm.generate([[5] * 5000])
    with pytest.raises(RequestError, match="logprobs=21"):
        llm.generate("a", SamplingParams(logprobs=21))
    assert llm.generate("Mira is", SamplingParams(max_tokens=3), use_tqdm=False)[0].finished


def test_one_step_at_a_time_with_aborts_and_a_cache_reset(llm: LLM) -> None:
    engine = llm.llm_engine
    for name in ("a", "b"):
        engine.add_request(name, "Once upon a time", SamplingParams(max_tokens=400, ignore_eos=True))
    engine.step()
    assert not engine.engine.reset_prefix_cache(), "requests are running"
    engine.abort_request(["a"])
    engine.abort_request(["b", "never there"])
    assert not engine.has_unfinished_requests()
    assert not engine.engine.has_unfinished_requests()
    # The abort is taken between two steps, so that the reset after it finds nothing running.
    assert llm.reset_prefix_cache()
    for name in ("1", "0", "10"):
        engine.add_request(name, "Once upon a time", SamplingParams(max_tokens=400, ignore_eos=True))
    engine.engine.abort_request("10")
    assert engine_of(llm)._unfinished.keys() == {"0", "1"}
    engine.abort_all()


def test_a_wrong_option_is_the_same_error_as_here(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=str(tmp_path)):
        LLM(str(tmp_path), background_engine=True, skip_tokenizer_init=True)


def exhaust(engine: LLMEngine) -> None:
    while engine.has_unfinished_requests():
        engine.step()


def test_the_engine_dies_and_everybody_learns_of_it() -> None:
    llm = LLM(background_engine=True, **OPTIONS)
    engine = llm.llm_engine
    engine.add_request("a", "Once upon a time", SamplingParams(max_tokens=2000, ignore_eos=True))
    engine.step()
    engine_of(llm)._connections[0].kill("a test")
    with pytest.raises(EngineError, match="SIGKILL"):
        exhaust(engine)
    with pytest.raises(EngineError, match="SIGKILL"):
        engine.add_request("b", "Once upon a time")
    llm.close()


def gone(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    return True


@pytest.mark.parametrize("end", ["return", "kill"])
def test_a_script_without_a_main_guard_leaves_nothing_behind(tmp_path: Path, end: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    # A file of that name alongside the script must not become part of the engine.
    (tmp_path / "zmq.py").write_text("raise SystemExit('imported from the working directory')")
    sockets = tmp_path / "sockets"
    sockets.mkdir()
    environment = {**os.environ, "TMPDIR": str(sockets), "PYTHONSAFEPATH": "1"}
    with subprocess.Popen(
        [sys.executable, str(script)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=tmp_path,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdin is not None
        lines = [process.stdout.readline().strip() for _ in range(4)]
        assert lines[0] == "begin"
        assert lines[3] == "end"
        assert len(lines[2]) > 10
        assert not gone(int(lines[1]))
        assert not list(sockets.iterdir()), "the sockets' names are not needed any more"
        if end == "kill":
            process.send_signal(signal.SIGKILL)
        else:
            process.stdin.write("\n")
        process.communicate()
    deadline = time.monotonic() + 30
    while not gone(int(lines[1])) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert gone(int(lines[1])), "the engine outlived the script"
