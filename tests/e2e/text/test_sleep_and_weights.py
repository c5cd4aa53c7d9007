"""An engine sleeps and wakes up, and gets other weights: memory, compilations and tokens."""

import gc
import shutil
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jaxllm import LLM, EngineError, RequestError, SamplingParams, StructuredOutputsParams
from jaxllm.engine.control import EngineControl, PauseMode
from jaxllm.engine.engine import Engine
from jaxllm.executor.weights import store
from jaxllm.serving.ipc.engine_process.clients import Client, Clients
from jaxllm.serving.ipc.engine_process.loop import _obey
from jaxllm.serving.ipc.messages import AttachClient, Call, Loading, Outputs, Ready
from tests.e2e.text.conftest import SMALL
from tests.thinned import EVERY_CASE

OPTIONS: dict[str, Any] = {**SMALL, "strict_compilation": True, "enable_sleep_mode": True}
GREEDY = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
PROMPTS = ["Once upon a time there was a little dog who liked to eat apples and to sing all day long.", "1 + 2 ="]
Weights = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def old(demo_folder: Path) -> Weights:
    return load_file(demo_folder / "model.safetensors")


@pytest.fixture(scope="module")
def new(old: Weights) -> Weights:
    """Another checkpoint of the same model, which says something else."""
    random = np.random.default_rng(0)
    return {name: _changed(values, random) for name, values in old.items()}


def _changed(values: np.ndarray, random: np.random.Generator) -> np.ndarray:
    wide = values.astype(np.float32)
    return (wide + random.normal(0, 0.3 * float(wide.std()) + 1e-3, wide.shape)).astype(values.dtype)


@pytest.fixture(scope="module")
def new_folder(new: Weights, demo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("new") / "checkpoint"
    shutil.copytree(demo_folder, folder)
    save_file(new, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def wanted(new_folder: Path) -> list[list[int]]:
    """The tokens of a fresh engine on the new checkpoint."""
    with LLM(str(new_folder), **OPTIONS) as llm:
        return tokens_of(llm)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("demo", **OPTIONS) as made:
        yield made


@pytest.fixture
def compiled() -> Iterator[list[str]]:
    """Everything that is compiled in this process."""
    seen: list[str] = []

    def listen(event: str, duration_secs: float, **details: Any) -> None:
        del duration_secs
        if event == "/jax/core/compile/backend_compile_duration":
            seen.append(str(details.get("fun_name")))

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield seen
    jax.monitoring.unregister_event_duration_listener(listen)


def tokens_of(llm: LLM) -> list[list[int]]:
    return [list(output.outputs[0].token_ids) for output in llm.generate(PROMPTS, GREEDY, use_tqdm=False)]


def live_bytes() -> int:
    gc.collect()
    return sum(array.nbytes for array in jax.live_arrays())


@pytest.mark.parametrize("level", [1, 2])
def test_sleep_frees_the_devices_and_tokens_are_the_same(llm: LLM, level: int, compiled: list[str]) -> None:
    before = tokens_of(llm)
    awake = live_bytes()
    held = llm.llm_engine.engine
    llm.sleep(level)
    asleep = live_bytes()
    assert isinstance(held, Engine)
    assert not held.runner.parameters
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(held.runner.calls.state))
    assert awake - asleep > 8 * 2**20
    assert llm.is_sleeping()
    with pytest.raises(EngineError, match=rf"asleep \(level {level}\)"):
        tokens_of(llm)
    llm.wake_up(tags=["weights"])
    assert llm.is_sleeping()
    llm.wake_up(tags=["kv_cache"])
    assert not llm.is_sleeping()
    assert live_bytes() == awake
    assert tokens_of(llm) == before
    assert not compiled


def test_what_sleep_and_wake_up_refuse(llm: LLM) -> None:
    with pytest.raises(RequestError, match="level=3"):
        llm.sleep(3)
    with pytest.raises(RequestError, match="mode='gently'"):
        llm.sleep(1, mode="gently")  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="tags=\\['cache'\\]"):
        llm.wake_up(tags=["cache"])
    assert not llm.is_sleeping()


def test_streams_end_or_go_on(llm: LLM) -> None:
    whole = tokens_of(llm)[0]
    modes: tuple[PauseMode, ...] = ("keep", "wait", "abort")
    for mode in modes:
        stream = llm.stream(PROMPTS[0], GREEDY)
        got = list(next(stream).token_ids)
        llm.sleep(1, mode=mode)
        llm.wake_up()
        got += [token for delta in stream for token in delta.token_ids]
        if mode == "abort":
            assert got == whole[: len(got)]
            assert len(got) < len(whole)
        else:
            assert got == whole


def test_a_request_that_is_refused_does_not_end_the_wait_of_a_sleep(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is for whoever steps next to hear of it."""
    whole, engine = tokens_of(llm)[0], llm.llm_engine
    # Of all refusals the quickest to bring about: a grammar that nobody tried first.
    monkeypatch.setattr(engine.inputs._forms, "check", lambda form: 0)
    engine.add_request("good", PROMPTS[0], GREEDY)
    forever = StructuredOutputsParams(grammar="start: start")
    engine.add_request("bad", PROMPTS[1], SamplingParams(max_tokens=4, structured_outputs=forever))
    engine.sleep(1, mode="wait")
    assert engine.is_sleeping()
    engine.wake_up()
    with pytest.raises(RequestError, match="request bad: "):
        engine.step()
    assert engine.step()[-1].outputs[0].token_ids == whole
    assert not engine.has_unfinished_requests()
    assert tokens_of(llm)[0] == whole, "it takes new requests"


@pytest.mark.parametrize("kind", ["folder", "numpy", "jax", "pairs"])
def test_new_weights_are_as_good_as_a_fresh_engine(
    llm: LLM, kind: str, old: Weights, new: Weights, new_folder: Path, wanted: list[list[int]], compiled: list[str]
) -> None:
    before = tokens_of(llm)
    assert before != wanted
    updates = llm.update_weights(_as(kind, new, new_folder))
    assert tokens_of(llm) == wanted
    assert not compiled or kind == "jax"
    assert llm.reload_weights() == updates + 1
    assert tokens_of(llm) == before
    del old


def _as(kind: str, weights: Weights, folder: Path) -> Any:
    match kind:
        case "folder":
            return folder
        case "numpy":
            return weights
        case "jax":
            return {name: jnp.asarray(values) for name, values in weights.items()}
    # In no order that a checkpoint would have, as a trainer may give them.
    return ((name, weights[name]) for name in sorted(weights, key=lambda name: name[::-1]))


def test_some_tensors_change_and_the_others_stay(llm: LLM, old: Weights, new: Weights, wanted: list[list[int]]) -> None:
    before = tokens_of(llm)
    # Matrices that are one parameter with others, and norms; those of some layers come later.
    first = {name for name in old if "q_proj" in name or "up_proj" in name or name.endswith("norm.weight")}
    llm.update_weights({name: new[name] for name in first})
    assert tokens_of(llm) not in (before, wanted)
    llm.update_weights({name: new[name] for name in old if name not in first})
    assert tokens_of(llm) == wanted
    llm.update_weights(old)
    assert tokens_of(llm) == before


def test_a_prefix_of_the_old_weights_is_never_found(llm: LLM, old: Weights, new: Weights) -> None:
    tokens_of(llm)
    first = llm.generate(PROMPTS[0], GREEDY, use_tqdm=False)[0]
    assert first.num_cached_tokens
    for weights in (new, old):
        llm.update_weights(weights)
        again = llm.generate(PROMPTS[0], GREEDY, use_tqdm=False)[0]
        assert not again.num_cached_tokens
        assert (again.outputs[0].token_ids == first.outputs[0].token_ids) == (weights is old)


def test_a_stream_goes_on_with_the_new_weights(llm: LLM, old: Weights, new: Weights) -> None:
    prompt = llm.get_tokenizer()(PROMPTS[0])["input_ids"]
    stream = llm.stream([prompt], GREEDY)
    got = [token for _ in range(4) for token in next(stream).token_ids]
    llm.update_weights(new)
    rest = [token for delta in stream for token in delta.token_ids]
    # Steps that were under way are still of the old ones.
    there = llm.generate([prompt + got + rest[:2]], GREEDY, use_tqdm=False)[0].outputs[0].token_ids
    assert rest[2:] == list(there)[: len(rest) - 2]
    llm.update_weights(old)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"model.norm.wait": np.ones(4, np.float32)}, "unexpected tensor.*model.norm.wait"),
        ({"model.norm.weight": np.ones(4, np.float32)}, r"model.norm.weight.*has shape \[4\], expected"),
        ({"model.norm.weight": np.ones(4, np.complex64)}, "type complex64"),
        ({"model.norm.weight": [1.0]}, "is a list, expected an array"),
    ],
)
def test_what_is_wrong_is_refused_before_anything_changes(
    llm: LLM, new: Weights, wrong: dict[str, Any], message: str
) -> None:
    before = tokens_of(llm)
    with pytest.raises(RequestError, match=message):
        llm.update_weights({**new, **wrong})
    assert tokens_of(llm) == before


def test_numbers_that_are_not_finite_change_nothing_in_a_mapping(llm: LLM, new: Weights) -> None:
    before = tokens_of(llm)
    bad = {**new, "model.norm.weight": np.full_like(new["model.norm.weight"], np.nan)}
    with pytest.raises(RequestError, match=r"model.norm.weight.*not finite"):
        llm.update_weights(bad)
    assert tokens_of(llm) == before


def test_an_update_that_fails_half_way_must_be_made_again(
    llm: LLM, old: Weights, new: Weights, wanted: list[list[int]], new_folder: Path, tmp_path: Path
) -> None:
    before = tokens_of(llm)

    def give_up() -> Iterator[tuple[str, np.ndarray]]:
        yield from list(new.items())[:5]
        raise KeyError("the trainer is gone")

    with pytest.raises(KeyError):
        llm.update_weights(give_up())
    with pytest.raises(EngineError, match=r"failed halfway .*repeat it"):
        tokens_of(llm)
    with pytest.raises(RequestError, match="must contain all tensors"):
        llm.update_weights({"model.norm.weight": new["model.norm.weight"]})
    with pytest.raises(EngineError, match="repeat it with all tensors"):
        tokens_of(llm)
    llm.update_weights(new)
    assert tokens_of(llm) == wanted
    # A folder without weights, and one whose last tensor is broken.
    with pytest.raises(RequestError, match=r"neither model\.safetensors"):
        llm.update_weights(tmp_path)
    with pytest.raises(RequestError, match="is not a folder"):
        llm.update_weights(tmp_path / "nothing")
    assert tokens_of(llm) == wanted
    shutil.copytree(new_folder, tmp_path / "broken")
    last = np.full_like(old["model.norm.weight"], np.nan)
    save_file({**old, "model.norm.weight": last}, tmp_path / "broken" / "model.safetensors")
    with pytest.raises(RequestError, match=r"model.norm.weight.*not finite"):
        llm.update_weights(tmp_path / "broken")
    with pytest.raises(EngineError, match="repeat it with all tensors"):
        tokens_of(llm)
    llm.reload_weights()
    assert tokens_of(llm) == before


def test_new_weights_for_an_engine_that_sleeps(llm: LLM, old: Weights, new: Weights, wanted: list[list[int]]) -> None:
    before = tokens_of(llm)
    # As in a loop of reinforcement learning: the cache comes back when the trainer has left the devices.
    llm.sleep(level=2)
    llm.wake_up(tags=["weights"])
    llm.update_weights(new)
    llm.wake_up(tags=["kv_cache"])
    assert tokens_of(llm) == wanted
    # What came from a trainer is nowhere to be read again.
    llm.sleep(level=2)
    llm.wake_up()
    with pytest.raises(EngineError, match="came from a trainer and were discarded"):
        tokens_of(llm)
    llm.update_weights(old)
    assert tokens_of(llm) == before


def control_of(llm: LLM) -> EngineControl:
    engine = llm.llm_engine.engine
    assert isinstance(engine, Engine)
    return engine.control


def test_a_sleep_that_waits_can_be_taken_back(llm: LLM) -> None:
    whole = tokens_of(llm)
    stream = llm.stream(PROMPTS[0], GREEDY)
    got = list(next(stream).token_ids)
    control = control_of(llm)
    assert not control.sleep(1, "wait")
    llm.wake_up()
    with pytest.raises(RequestError, match="the engine keeps running"):
        control.sleep(1, "wait", again=True)
    assert not control.pause("wait")
    control.resume()
    with pytest.raises(RequestError, match="the engine keeps running"):
        control.pause("wait", again=True)
    assert tokens_of(llm) == whole
    assert [*got, *(token for delta in stream for token in delta.token_ids)] == whole[0]


def test_weights_of_a_folder_wait_for_an_update_under_way(llm: LLM, new_folder: Path) -> None:
    before = tokens_of(llm)
    control = control_of(llm)
    control.start_weight_update()
    with pytest.raises(RequestError, match="finish it first"):
        control.update_weights_from(str(new_folder))
    control.finish_weight_update()
    assert tokens_of(llm) == before


def test_a_saved_state_of_an_engine(
    llm: LLM, new: Weights, old: Weights, wanted: list[list[int]], tmp_path: Path, compiled: list[str]
) -> None:
    """An engine saves what a trainer has made, takes it back, and finds it again when it wakes up."""
    llm.update_weights(new)
    assert llm.collective_rpc("save_sharded_state", kwargs={"path": str(tmp_path / "state")}) == [None]
    with pytest.raises(RequestError, match="unknown"):
        llm.llm_engine.engine_core.save_sharded_state(str(tmp_path), pattern="{number}.safetensors")
    llm.update_weights(old)
    assert tokens_of(llm) != wanted
    llm.update_weights(tmp_path / "state")
    assert tokens_of(llm) == wanted
    llm.sleep(2)
    with pytest.raises(RequestError, match="the weights are offloaded"):
        llm.save_sharded_state(str(tmp_path / "other"))
    llm.wake_up()
    assert tokens_of(llm) == wanted
    (file,) = (tmp_path / "state").glob("*.safetensors")
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    # Before anything changes.
    with pytest.raises(RequestError, match="truncated"):
        llm.update_weights(tmp_path / "state")
    assert tokens_of(llm) == wanted
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(RequestError, match="checksum"):
        llm.update_weights(tmp_path / "state")
    file.write_bytes(whole)
    llm.update_weights(tmp_path / "state")
    assert tokens_of(llm) == wanted
    assert not compiled


def test_an_interrupt_ends_an_update(llm: LLM, new_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = tokens_of(llm)

    def interrupted(*arguments: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(store, "Checkpoint", interrupted)
        with pytest.raises(KeyboardInterrupt):
            llm.update_weights(new_folder)
    assert tokens_of(llm) == before


def test_dropped_weights_stay_dropped_in_a_lighter_sleep(llm: LLM) -> None:
    llm.reload_weights()
    before = tokens_of(llm)
    llm.sleep(2)
    llm.wake_up(tags=["weights"])
    llm.sleep(1)
    llm.wake_up()
    assert tokens_of(llm) == before


def test_long_copies_show_how_far_they_are(llm: LLM) -> None:
    engine, client = llm.llm_engine.engine, Client("nowhere", SimpleQueue())
    assert isinstance(engine, Engine)
    for method, stage in (("sleep", "to the host"), ("start_weight_update", "to the devices")):
        clients = Clients(client, SimpleQueue(), engine.info)
        _obey(Call(0, method), engine, client, clients)  # type: ignore[arg-type]
        told = client.output_queue.take()
        assert isinstance(told, Loading)
        assert stage in told.stage
    control_of(llm).finish_weight_update()
    llm.wake_up()


def test_a_client_that_comes_late_hears_that_the_engine_is_paused(llm: LLM) -> None:
    engine, first, late = llm.llm_engine.engine, Client("first", SimpleQueue()), Client("late", SimpleQueue())
    assert isinstance(engine, Engine)
    clients = Clients(first, SimpleQueue(), engine.info)
    clients.include(late)
    assert isinstance(late.output_queue.take(), Ready)
    engine.control.pause()
    _obey(AttachClient("late"), engine, first, clients)
    engine.control.resume()
    late.output_queue.close()
    told = late.output_queue.take()
    assert isinstance(told, Outputs)
    assert told.stats is not None
    assert told.stats.is_paused


def test_what_is_queued_outlives_a_sleep(llm: LLM) -> None:
    llm.enqueue(PROMPTS, GREEDY)
    llm.sleep(1, mode="keep")
    with pytest.raises(EngineError, match="is asleep"):
        llm.wait_for_completion(use_tqdm=False)
    llm.wake_up()
    assert [output.finished for output in llm.wait_for_completion(use_tqdm=False)] == [True, True]


def test_a_sleeping_engine_needs_the_option() -> None:
    with LLM("demo", **SMALL) as llm, pytest.raises(RequestError, match="--enable-sleep-mode"):
        llm.sleep()


VARIANTS: dict[str, dict[str, Any]] = {
    "int8": {"quantization": "int8"},
    "scan": {"layer_stack": "scan"},
    "bfloat16": {"dtype": "bfloat16"},
    "tensor parallel": {"tensor_parallel_size": 2},
    "tensor parallel scan": {"tensor_parallel_size": 2, "layer_stack": "scan"},
    "stages": {"pipeline_parallel_size": 2},
    "data shards": {"mesh": "data=2,model=1"},
    "bfloat16 data shards": {"mesh": "data=2,model=1", "dtype": "bfloat16"},
    "processes": {"data_parallel_size": 2},
    "int8 scan": {"quantization": "int8", "layer_stack": "scan"},
}
SAVED = ("int8 scan", "tensor parallel scan", "stages", "processes")
"""Of these the weights are saved, too."""
COVERING = (*SAVED, "bfloat16 data shards")
"""They have every option between them."""


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS if EVERY_CASE else COVERING)
def test_other_engines(
    name: str, old: Weights, new: Weights, new_folder: Path, wanted: list[list[int]], tmp_path: Path
) -> None:
    # Fewer shapes of steps, and none that is not used: compiling takes nearly all the time.
    options = {**OPTIONS, "max_num_batched_tokens": 8, "enforce_eager": True, **VARIANTS[name]}
    if not VARIANTS[name].keys().isdisjoint({"quantization", "dtype"}):
        # Others have the tokens of one device.
        with LLM(str(new_folder), **options) as fresh:
            wanted = tokens_of(fresh)
    with LLM("demo", **options) as llm:
        before = tokens_of(llm)
        assert before != wanted
        # A trainer's bfloat16 goes through whatever lies between it and the engine.
        llm.update_weights({each: values.astype(ml_dtypes.bfloat16) for each, values in new.items()})
        llm.update_weights(new)
        assert tokens_of(llm) == wanted
        llm.sleep(1)
        with pytest.raises(EngineError, match="is asleep"):
            tokens_of(llm)
        llm.wake_up()
        assert tokens_of(llm) == wanted
        llm.update_weights({each: old[each] for each in old if "v_proj" in each or "gate_proj" in each})
        assert tokens_of(llm) not in (before, wanted)
        with pytest.raises(RequestError, match="unexpected tensor"):
            llm.update_weights({"nothing": new["model.norm.weight"]})
        llm.update_weights(new_folder)
        assert tokens_of(llm) == wanted
        llm.sleep(2)
        llm.wake_up()
        assert tokens_of(llm) == wanted
        if name not in SAVED:
            return
        llm.save_sharded_state(str(tmp_path))
    with LLM(str(tmp_path), load_format="sharded_state", **options) as again:
        assert tokens_of(again) == wanted
        again.sleep(2)
        again.wake_up()
        assert tokens_of(again) == wanted
        again.update_weights(old)
        assert tokens_of(again) == before
