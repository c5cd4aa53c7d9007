"""The methods of `LLM` that are about its engine, whatever it computes: weights, sleep, traces, and its end."""

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from jaxllm.engine.control import PauseMode
from jaxllm.errors import CapacityError, ConfigError, EngineError, RequestError, short_for
from jaxllm.requests.lora_request import LoRARequest
from jaxllm.serving.llm.llm_engine import LLMEngine
from jaxllm.serving.llm.offline import OfflineRuns
from jaxllm.serving.llm.weights import NewWeights, adapters_of, add_lora, control_of, sleep, update
from jaxllm.serving.llm.worker import call, check_new_config, worker_of
from jaxllm.serving.text.cached_tokenizer import whole_of

if TYPE_CHECKING:
    from jaxllm.serving.llm.pooling_llm_engine import PoolingLLMEngine


@short_for((ConfigError, RequestError, CapacityError))
class EngineMethods:
    """An open engine, and the requests of the calls that share it. A part of `LLM`."""

    def __init__(self, engine: "LLMEngine | PoolingLLMEngine", num_engines: int, worker_extension: type | None) -> None:
        """`num_engines` processes run the model (data parallel); `worker_extension` is for `collective_rpc`."""
        self._engine: LLMEngine | PoolingLLMEngine | None = engine
        self._num_engines = num_engines
        self._worker_extension = worker_extension
        self._runs = OfflineRuns()
        self._loras: dict[int, LoRARequest] = {}

    def _open(self) -> "LLMEngine | PoolingLLMEngine":
        if self._engine is None:
            raise EngineError("this LLM is closed: create a new one")
        return self._engine

    def get_tokenizer(self) -> Any:
        """The `transformers` tokenizer. Raises `EngineError` when there is none (`skip_tokenizer_init`)."""
        tokenizer = self._open().tokenizer
        if tokenizer is None:
            raise EngineError("there is no tokenizer, because of skip_tokenizer_init")
        return whole_of(tokenizer)

    def get_world_size(self, include_dp: bool = True) -> int:
        """Devices of the engine; with `include_dp`, of all engines."""
        info = self._open().engine.info
        return info.num_devices * (self._num_engines if include_dp else 1)

    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        """Forget all cached prefixes; False when that is not possible now.

        With `reset_running_requests`, requests of other threads are a reason for False too. There is no connector.
        """
        del reset_running_requests, reset_connector
        with self._runs.lock:
            return self._open().engine.reset_prefix_cache()

    def reset_mm_cache(self) -> None:
        """Forget images and sounds that were processed: files are decoded again."""
        with self._runs.lock:
            self._open().reset_mm_cache()

    def collective_rpc(
        self,
        method: str | Callable[..., Any],
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Call a method of the worker, or a function of it: returns a list of one, as one worker has all devices.

        The worker has the methods of `worker_extension_cls`; its `engine` is the engine of token ids. `timeout` changes
        nothing. Every engine knows "reload_weights", "save_sharded_state" and "update_config". Raises `EngineError`
        for other methods of one in another process, and `RequestError` for an unknown method.
        """
        del timeout
        if method == "reload_weights":
            return [self.reload_weights()]
        if method == "update_config":
            check_new_config(*args, **(kwargs or {}))
            return [None]
        if method == "save_sharded_state":
            self.save_sharded_state(*args, **(kwargs or {}))
            return [None]
        with self._runs.lock:
            worker = worker_of(self._open().engine, self._worker_extension)
            return [call(worker, method, args, kwargs or {})]

    def apply_model(self, func: Callable[..., Any]) -> list[Any]:
        """Raises `EngineError`: there is no module whose attributes a function could read or change."""
        del func
        raise EngineError(
            "apply_model is not supported, because a model is a function of arrays; use collective_rpc to reach the "
            "engine"
        )

    def sleep(self, level: int = 1, mode: PauseMode = "abort") -> None:
        """Free the device memory until `wake_up`, with `enable_sleep_mode`. The KV cache is forgotten.

        Level 1 keeps the weights in the host's memory, level 2 drops them. Streams that run end (`mode` "abort"), are
        read to their ends first ("wait"), or go on afterwards ("keep"). Raises `RequestError`.
        """
        with self._runs.lock:
            engine = self._open()
            sleep(control_of(engine.engine), level, mode, lambda: self._runs.step(engine))

    def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Bring back what sleeps: everything, or of "weights" and "kv_cache" what the tags name.

        Weights that were dropped are read from the checkpoint, unless `update_weights` has brought them meanwhile.
        """
        with self._runs.lock:
            control_of(self._open().engine).wake_up(tags)

    def add_lora(self, lora_request: LoRARequest) -> bool:
        """Read a LoRA adapter before a request asks for it. Raises `RequestError` for a folder that holds none."""
        with self._runs.lock:
            add_lora(adapters_of(self._open().engine), lora_request)
        self._loras[lora_request.lora_int_id] = lora_request
        return True

    def remove_lora(self, lora_id: int) -> bool:
        """Forget the adapter with this `lora_int_id`; False if `add_lora` has added none."""
        lora = self._loras.pop(lora_id, None)
        if lora is None:
            return False
        with self._runs.lock:
            return bool(adapters_of(self._open().engine).remove_lora(lora.lora_name))

    def pin_lora(self, lora_id: int) -> bool:
        """Let the adapter with this `lora_int_id` keep its slot; False if `add_lora` has added none."""
        lora = self._loras.get(lora_id)
        if lora is None:
            return False
        with self._runs.lock:
            return bool(adapters_of(self._open().engine).pin_lora(lora.lora_name))

    def list_loras(self) -> set[int]:
        """The `lora_int_id` of each adapter that `add_lora` has added."""
        return set(self._loras)

    def is_sleeping(self) -> bool:
        """Whether anything sleeps."""
        with self._runs.lock:
            return bool(control_of(self._open().engine).is_sleeping())

    def update_weights(self, weights: NewWeights) -> int:
        """Replace weights: a folder with a checkpoint, or arrays by their names there, as a mapping or pairs.

            llm.update_weights(trainer.params_by_name())

        Tensors that are not among the arrays stay as they are. Nothing is compiled, and besides the weights the devices
        hold one tensor at most. No cached prefix outlives it. Returns how often weights were replaced so far.

        Raises `RequestError` for what is wrong with a tensor. If it came half-way, every call says so until all
        tensors have been given again. See docs/sleep_and_weights.md.
        """
        with self._runs.lock:
            return update(control_of(self._open().engine), weights)

    def reload_weights(self) -> int:
        """Read all weights from the model's checkpoint again."""
        with self._runs.lock:
            return int(control_of(self._open().engine).update_weights_from())

    def save_sharded_state(self, path: str, pattern: str | None = None, max_size: int | None = None) -> None:
        """Write the weights to a folder as they lie on the devices, with what else a model's folder has.

            llm.save_sharded_state("/models/fast")
            LLM("/models/fast", load_format="sharded_state")

        `pattern` names the files, by {rank}, {part} and, with stages, {pp_rank}; a file has at most `max_size` bytes
        where its tensors allow that. Raises `RequestError`. See docs/sleep_and_weights.md.
        """
        with self._runs.lock:
            control_of(self._open().engine).save_sharded_state(str(path), pattern, max_size)

    def start_profile(self, profile_prefix: str | None = None) -> str:
        """Begin a trace in `profiler_dir`, which it returns. Raises `RequestError` where none is given."""
        del profile_prefix
        with self._runs.lock:
            return self._open().engine.start_profile()

    def stop_profile(self) -> str:
        """Write the trace, for xprof or TensorBoard; returns its folder. Raises `RequestError` where none was begun."""
        with self._runs.lock:
            return self._open().engine.stop_profile()

    def close(self) -> None:
        """Free the device memory. Closing twice does no harm."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
