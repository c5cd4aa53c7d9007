"""A local Ray cluster: engines that it places and starts, and the programs of docs/examples/ray.

The tokens are the same as without it, a dead actor costs no request, and a batch goes on where it was killed.
"""

import asyncio
import gc
import os
import runpy
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio

from jaxllm import LLM, EngineConfig, SamplingParams
from jaxllm.serving.ipc.client import asynchronous, health
from jaxllm.serving.llm.async_llm import AsyncLLM
from tests.ports import free_ports

# Ray starts its processes by a fork; JAX warns about that where another test has used JAX in this process.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings(r"ignore:os.fork\(\) was called:RuntimeWarning")]
in_loop = pytest.mark.asyncio(loop_scope="module")

ROOT = Path(__file__).resolve().parents[3]

OPTIONS: dict[str, Any] = {
    "optimization_level": 0, "max_num_seqs": 4, "max_num_batched_tokens": 16, "num_gpu_blocks_override": 300,
    "enforce_eager": True,
}  # fmt: skip
GREEDY = SamplingParams(max_tokens=20, temperature=0, ignore_eos=True)
SEEDED = SamplingParams(max_tokens=20, temperature=1, seed=7, ignore_eos=True)
LONG = SamplingParams(max_tokens=1500, ignore_eos=True, temperature=0.5, seed=1)
IN_TWO = SamplingParams(max_tokens=400, ignore_eos=True, temperature=0.5, seed=1)
"""As long where two processes compute each token together."""
PROMPTS = [f"Tell me about the number {number}." for number in range(6)]


RAY_SETTINGS = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Otherwise some of its processes listen on all interfaces.
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
    "RAY_worker_niceness": "0",  # Tests that run next to these would have all processors: gloo waits for 30 s only.
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """A cluster of this machine that nobody else reaches, which says that it has a slice of 8 chips."""

    # Within, because processes of Ray's cannot import this file.
    def stay_on_loopback() -> None:
        """In every process of Ray's: replicas of Ray Serve would let each other in on all interfaces."""
        from ray._common import tls_utils

        add_port = tls_utils.add_port_to_grpc_server
        tls_utils.add_port_to_grpc_server = lambda server, at: add_port(server, at.replace("[::]", "127.0.0.1"))

    # Ray reads some of them when it is imported.
    os.environ.update(RAY_SETTINGS)
    ray: Any = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    # Its own way of counting: the filter, the engine, the reader and the writer of Ray Data.
    first = {"num_cpus": 4, "resources": {"TPU": 8, "TPU-v6e-8-head": 1}, "include_dashboard": False}
    memory = {"object_store_memory": 100 << 20, "node_ip_address": "127.0.0.1"}
    machines = Cluster(initialize_head=True, head_node_args={**first, **memory})
    try:
        # What says that it is another machine.
        machines.add_node(num_cpus=1, resources={"elsewhere": 1, "far-head": 1}, **memory)
        hook = {"worker_process_setup_hook": stay_on_loopback}
        ray.init(address=machines.address, runtime_env=hook, log_to_driver=False)
        yield machines.address
    finally:
        ray.shutdown()
        machines.shutdown()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def llm(cluster: str) -> AsyncIterator[AsyncLLM]:
    more = {"data_parallel_size": 2, "data_parallel_backend": "ray", "ray_resources": {"TPU": 4}}
    config = EngineConfig.from_options({**OPTIONS, **more})
    llm = await AsyncLLM.start(config, log_level="warning", max_restarts=10)
    yield llm
    await llm.shutdown()


@pytest.fixture(scope="module")
def here() -> Iterator[LLM]:
    """An engine of one device in this process."""
    with LLM(**OPTIONS) as made:
        yield made


def texts(llm: LLM, params: SamplingParams) -> list[str]:
    """Its continuations of the prompts."""
    return [output.outputs[0].text for output in llm.generate(PROMPTS, params, use_tqdm=False)]


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests wait for the next engine as long as a start may take on a busy machine."""
    for module in (health, asynchronous):
        monkeypatch.setattr(module, "RESTART_WAIT_SECONDS", 120.0)


async def text_of(llm: AsyncLLM, prompt: str, params: SamplingParams, **settings: Any) -> str:
    texts = [output.outputs[0].text async for output in llm.generate(prompt, params, **settings)]
    return texts[-1]


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


@in_loop
async def test_the_tokens_are_the_same(llm: AsyncLLM, here: LLM) -> None:
    for params in (GREEDY, SEEDED):
        wanted = texts(here, params)
        for engine in (0, 1):
            found = await asyncio.gather(
                *(text_of(llm, prompt, params, data_parallel_rank=engine) for prompt in PROMPTS)
            )
            assert list(found) == wanted


@in_loop
async def test_each_engine_sees_its_chips(llm: AsyncLLM) -> None:
    chips = [psutil.Process(pid).environ()["TPU_VISIBLE_CHIPS"].split(",") for pid in llm.engine_pids]
    assert sorted(int(chip) for each in chips for chip in each) == list(range(8))


@in_loop
async def test_requests_of_a_dead_actor_go_on(llm: AsyncLLM) -> None:
    pid = llm.engine_pids[0]
    lost = asyncio.ensure_future(text_of(llm, "Once upon a time", LONG, data_parallel_rank=0))
    kept = asyncio.ensure_future(text_of(llm, "Once upon a time", LONG, data_parallel_rank=1))
    await until(lambda: llm.num_unfinished == 2)
    actor = psutil.Process(pid).parent()
    assert actor is not None
    actor.kill()
    assert await lost == await kept
    assert await text_of(llm, PROMPTS[0], SEEDED, data_parallel_rank=0), "it waits for the next one"
    assert llm.engine_pids[0] != pid


@in_loop
async def test_an_engine_on_another_machine(cluster: str, here: LLM) -> None:
    """Its client has a way to it over TCP; its actor dies, and it is placed again."""
    more = {"data_parallel_backend": "ray", "ray_resources": {"elsewhere": 1}}
    config = EngineConfig.from_options({**OPTIONS, **more})
    llm = await AsyncLLM.start(config, log_level="warning", max_restarts=10)
    try:
        wanted = texts(here, SEEDED)
        assert await asyncio.gather(*(text_of(llm, prompt, SEEDED) for prompt in PROMPTS)) == wanted
        lost = asyncio.ensure_future(text_of(llm, "Once upon a time", LONG))
        await until(lambda: llm.num_unfinished == 1)
        handle: Any = llm.engines.engines[0]._supervisor.connection._process
        handle._ray.kill(handle._actor)
        assert await lost, "it goes on in the next one"
        assert await text_of(llm, PROMPTS[0], SEEDED) == wanted[0], "it waits for the next one"
    finally:
        await llm.shutdown()


@in_loop
@pytest.mark.parametrize(
    "resources",
    [
        pytest.param({"CPU": 0.5}, id="here", marks=pytest.mark.exhaustive),
        pytest.param({"CPU": 0.5, "far-head": 1}, id="elsewhere"),
    ],
)
async def test_one_engine_in_two_processes(
    cluster: str, here: LLM, monkeypatch: pytest.MonkeyPatch, resources: dict[str, float]
) -> None:
    """The first process is on this machine or on another one; who follows dies, and all are started again."""
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "1")
    more = {"distributed_executor_backend": "ray", "nnodes": 2, "ray_resources": resources}
    config = EngineConfig.from_options({**OPTIONS, **more, "tensor_parallel_size": 2})
    greedy = texts(here, GREEDY)
    llm = await AsyncLLM.start(config, log_level="warning", max_restarts=10)
    try:
        assert await asyncio.gather(*(text_of(llm, prompt, GREEDY) for prompt in PROMPTS)) == greedy
        lost = asyncio.ensure_future(text_of(llm, "Once upon a time", IN_TWO))
        await until(lambda: llm.num_unfinished == 1)
        handle: Any = llm.engines.engines[0]._supervisor.connection._process
        handle._ray.kill(handle._actors.actors[1])
        await until(lambda: not llm.engines.engines[0].health.is_up)
        assert "process 1 of 2: its actor died" in str(llm.engines.engines[0].health.down)
        assert await lost, "it goes on in the next one"
        assert await text_of(llm, PROMPTS[0], GREEDY) == greedy[0], "it waits for the next ones"
    finally:
        await llm.shutdown()


@in_loop
async def test_one_engine_takes_a_whole_slice(llm: AsyncLLM) -> None:
    """Offline; what the others have must be given back first."""
    await llm.shutdown()
    slice_of_8 = {"TPU": 8, "TPU-v6e-8-head": 1}
    options = {**OPTIONS, "data_parallel_backend": "ray", "ray_resources": slice_of_8}
    with LLM(**options, ray_runtime_env={"env_vars": {"JAXLLM_TEST": "there"}}) as offline:
        offline.generate(PROMPTS[:1], GREEDY, use_tqdm=False)
        engine: Any = offline.llm_engine.engine
        environ = psutil.Process(engine._connections[0].pid).environ()
        assert environ["JAXLLM_TEST"] == "there"
        assert len(environ["TPU_VISIBLE_CHIPS"].split(",")) == 8


EXAMPLES = ROOT / "docs" / "examples" / "ray"


def listeners(folder: str = "/proc/net") -> set[str]:
    """Ports on which somebody on this machine listens on all interfaces."""
    found = set()
    for name in ("tcp", "tcp6"):
        for line in Path(folder, name).read_text().splitlines()[1:]:
            address, state = line.split()[1], line.split()[3]
            if state == "0A" and set(address.partition(":")[0]) == {"0"}:
                found.add(address.partition(":")[2])
    return found


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")  # of Ray's own
def test_ray_serve(
    cluster: str, here: LLM, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The example streams an answer; then another client gets what there is without Ray, in one piece and in many."""
    from openai import OpenAI
    from ray import serve

    from jaxllm.serving.server import ray_serve

    small = {**OPTIONS, "ray_resources": {"CPU": 1}}
    monkeypatch.setattr(ray_serve, "build", lambda given, build=ray_serve.build: build({**small, **given}))
    before, port = listeners(), free_ports()
    monkeypatch.setattr("sys.argv", ["serve_llm.py", "demo", "--port", str(port)])
    try:
        runpy.run_path(str(EXAMPLES / "serve_llm.py"), run_name="__main__")
        assert capsys.readouterr().out.strip()
        assert listeners() <= before
        asked: dict[str, Any] = {"model": "demo", "prompt": PROMPTS[0], "max_tokens": 20, "temperature": 0}
        asked["extra_body"] = {"ignore_eos": True}
        with OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none") as client:
            (wanted,) = here.generate(PROMPTS[:1], GREEDY, use_tqdm=False)
            assert client.completions.create(**asked).choices[0].text == wanted.outputs[0].text
            # So many tokens that they do not come in one piece where the reader is slow.
            asked["max_tokens"] = 400
            pieces = [each.choices[0].text for each in client.completions.create(**asked, stream=True)]
            assert "".join(pieces).startswith(wanted.outputs[0].text)
            assert len(pieces) > 1
    finally:
        serve.shutdown()
        # What it leaves is found here, where nobody is warned of it, and not in another test.
        gc.collect()


def test_the_application_connects_by_itself(cluster: str) -> None:
    """`serve run` makes it before anything else has found the cluster."""
    code = "from jaxllm.serving.server.ray_serve import build; build({'model': 'demo'})"
    environment = {**os.environ, "RAY_ADDRESS": cluster}
    made = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr


ROWS, BLOCK = 480, 48
"""Rows in all, and those that are answered together: the engine has few sizes of steps to compile."""


def test_ray_data_goes_on_where_it_was_killed(cluster: str, here: LLM, tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    given, output = tmp_path / "in.parquet", tmp_path / "out"
    parquet.write_table(pa.table({"id": range(ROWS), "prompt": [f"{number}" for number in range(ROWS)]}), given)
    command = [
        sys.executable,
        str(EXAMPLES / "batch.py"),
        str(given),
        str(output),
        "--max-tokens",
        "4",
        "--rows",
        str(BLOCK),
    ]
    environment = {**os.environ, "RAY_ADDRESS": cluster}
    first = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 300

    def notes() -> list[Path]:
        """Ray Data writes a note as `*.pending.parquet` before the rows, and renames it when they are written."""
        found = Path(f"{output}.checkpoint").glob("*.parquet")
        return [each for each in found if not each.name.endswith(".pending.parquet")]

    while len(notes()) < 3 and first.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    first.kill()
    assert first.wait() == -signal.SIGKILL, "it was not done yet"
    noted = [parquet.read_metadata(each).num_rows for each in notes()]
    assert 0 < sum(noted) < ROWS
    before = {each.name for each in output.glob("*.parquet")}

    again = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert again.returncode == 0, again.stderr
    # What was written, but whose note was pending yet, is written again.
    kept = before & {each.name for each in output.glob("*.parquet")}
    assert len(kept) >= len(noted), "what was there is kept"
    table = parquet.read_table(output).to_pydict()
    assert sorted(table["id"]) == list(range(ROWS))
    sample = list(zip(table["prompt"], table["answer"], strict=True))[:: ROWS // 50]
    wanted = here.generate(
        [prompt for prompt, _ in sample], SamplingParams(temperature=0, max_tokens=4), use_tqdm=False
    )
    assert [answer for _, answer in sample] == [each.outputs[0].text for each in wanted]
