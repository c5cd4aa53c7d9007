"""The loop of every engine: it keeps the device busy with steps, and reports statistics."""

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import jax
import msgspec

from jaxllm.config import EngineConfig
from jaxllm.config.engine_info import EngineInfo, ImageInfo, PoolingInfo, SoundInfo, StageInfo
from jaxllm.engine.garbage import trim_heap
from jaxllm.engine.stats import StepStats
from jaxllm.errors import RequestError
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.requests.outputs import EngineOutput

Step = TypeVar("Step")


class StepRunner(Protocol):
    """Runs an engine's steps. A protocol, since the runners of generation and of pooling share nothing else."""

    def close(self) -> None:
        """Free the device memory."""


class StepLoop(ABC, Generic[Step]):
    """An engine without its requests: the steps that are under way, and the outputs that the next one brings along.

    With asynchronous scheduling a step is started while the one before it runs, and one for each of several `stages`.
    """

    def __init__(self, info: EngineInfo, runner: StepRunner, config: EngineConfig, stages: int = 1) -> None:
        self.info = info
        self.runner = runner
        self._depth = max(2, stages) if config.scheduler.async_scheduling else 1
        self._profiler = Profiler(config.profiling.profiler_dir)
        self._under_way: deque[tuple[float, Step]] = deque()  # with the time each was begun
        self._ended: list[EngineOutput] = []
        self._step, self._step_seconds = StepStats(), 0.0
        self._last_end = 0.0
        self.on_close: list[Callable[[], None]] = []
        """Called once the device memory is free."""

    def step(self) -> list[EngineOutput]:
        """Compute one batch. Returns one output for each request that has something new."""
        ended, self._ended = self._ended, []
        while len(self._under_way) < self._depth and self._start():
            pass
        if not self._under_way:
            self._step, self._step_seconds = StepStats(), 0.0
            return ended
        began, step = self._under_way.popleft()
        outputs = self._complete(began, step)
        began, self._last_end = max(began, self._last_end), time.monotonic()
        self._step_seconds = self._last_end - began
        return ended + outputs

    def drain(self) -> None:
        """Complete the steps that are under way; the next call of `step` brings their outputs."""
        while self._under_way:
            began, step = self._under_way.popleft()
            self._ended += self._complete(began, step)

    @abstractmethod
    def _start(self) -> bool:
        """Give the device a step, and add it to those under way; False when there is none before the next result."""

    @abstractmethod
    def _complete(self, began: float, step: Step) -> list[EngineOutput]:
        """Wait for a step and take what it computed; `_step` says what it did, but for how long it took."""

    def is_ending(self, request_id: str) -> bool:
        """Whether a request has ended, and the next step's outputs will say so."""
        return any(output.request_id == request_id for output in self._ended)

    def mark_weights_stale(self, reason: str) -> None:
        """The weights are not those that are wanted: nothing is computed before they are replaced."""

    def start_profile(self) -> str:
        """See `Profiler.start`."""
        return self._profiler.start()

    def stop_profile(self) -> str:
        """See `Profiler.stop`."""
        return self._profiler.stop()

    def close(self) -> None:
        """Free the device memory. The engine cannot be used afterwards."""
        self._under_way.clear()
        self.runner.close()
        for callback in self.on_close:
            callback()
        trim_heap()


def describe(
    resolved: ResolvedConfig,
    num_shapes: int,
    *,
    max_logprobs: int = 0,
    num_pages: int = 1,
    cache_windows: tuple[int, ...] = (0,),
    enable_prefix_caching: bool = False,
    pooling: PoolingInfo | None = None,
    planned_step_seconds: dict[int, float] | None = None,
    stages: tuple[StageInfo, ...] = (),
    peaks: tuple[float, float] = (0.0, 0.0),
) -> EngineInfo:
    """What an engine of this configuration says of itself; as it stands, of one without a KV cache."""
    config, model = resolved.config, resolved.model
    return EngineInfo(
        model=config.model.model,
        model_folder=str(resolved.folder),
        vocab_size=model.vocab_size,
        eos_token_ids=tuple(model.eos_token_ids),
        max_model_len=resolved.max_model_len,
        max_num_seqs=resolved.max_num_seqs,
        max_num_batched_tokens=resolved.max_num_batched_tokens,
        max_logprobs=max_logprobs,
        num_pages=num_pages,
        block_size=resolved.page_size,
        cache_windows=cache_windows,
        enable_prefix_caching=enable_prefix_caching,
        dtype=resolved.dtype,
        embedding_size=model.hidden_size if config.model.enable_prompt_embeds and pooling is None else None,
        images=_image_info(resolved),
        sound=_sound_info(resolved),
        kv_cache_dtype=resolved.kv_dtype,
        device_kind=resolved.device_kind,
        num_devices=resolved.num_devices * resolved.data_shards * resolved.num_stages,
        stages=stages,
        logprobs_mode=config.output.logprobs_mode,
        data_shards=resolved.data_shards,
        num_shapes=num_shapes,
        max_loras=config.lora.max_loras if resolved.adapters is not None else 0,
        default_adapters=dict(config.lora.default_mm_loras or {}) if resolved.adapters is not None else {},
        max_drafts=0 if pooling is not None else resolved.max_drafts,
        pooling=pooling,
        structured_outputs_backend=config.structured.structured_outputs_backend,
        kernels=dict(resolved.kernels),
        planned_step_seconds=planned_step_seconds or {},
        peaks=peaks,
    )


def _image_info(resolved: ResolvedConfig) -> ImageInfo | None:
    tower = resolved.model.tower
    if tower is None or not resolved.sees_images:
        return None
    return ImageInfo(
        patch_size=tower.vision.patch_size,
        merge=tower.merge,
        token_id=tower.token_id,
        most_patches=tower.most_patches,
        most_rows=resolved.media_rows,
        side=tower.side,
        tile_side=tower.tile_side,
        first_rows=tower.first_rows,
        has_grid_positions=resolved.model.has_grid_positions,
        spans=tower.spans,
        longest_span=resolved.longest_span,
        crop_rows=tower.crop_rows,
        frames=tower.frames,
        video_token_id=tower.video_token_id,
        tokens_per_second=tower.tokens_per_second,
        fill=tower.fill,
    )


def _sound_info(resolved: ResolvedConfig) -> SoundInfo | None:
    sound = resolved.model.sound
    if sound is None or not (resolved.sees_images or resolved.model.has_cross_attention):
        return None
    info = SoundInfo(num_bins=sound.num_bins, num_frames=sound.num_frames, most_rows=resolved.media_rows)
    rows = sound.rows
    if rows is None:
        return info
    return msgspec.structs.replace(
        info,
        token_id=rows.token_id,
        frames_per_row=sound.frames_per_key * rows.positions_per_row,
        context=sound.context,
        windows=rows.windows,
        fills_up=rows.fills_up,
    )


class Profiler:
    """Takes one trace after the other with `jax.profiler`, into a folder of the operator's."""

    def __init__(self, folder: str | None) -> None:
        """Without a folder there are no traces."""
        self._folder = folder
        self._is_running = False

    def start(self) -> str:
        """Begin a trace, and return the folder. Raises `RequestError` without a folder, or while one is taken."""
        if self._folder is None:
            raise RequestError("profiling is off: start with profiler_dir (--profiler-dir FOLDER)")
        if self._is_running:
            raise RequestError("a trace is already in progress: stop it first")
        try:
            Path(self._folder).mkdir(parents=True, exist_ok=True)
            jax.profiler.start_trace(self._folder)
        except (OSError, RuntimeError) as error:
            raise RequestError(f"cannot start a trace in {self._folder}: {error}") from error
        self._is_running = True
        return self._folder

    def stop(self) -> str:
        """Write the trace, and return the folder. Raises `RequestError` where none was begun, or the disk is full."""
        if self._folder is None or not self._is_running:
            raise RequestError("no trace is in progress: start one first")
        self._is_running = False
        try:
            jax.profiler.stop_trace()
        except (OSError, RuntimeError) as error:
            raise RequestError(f"cannot write the trace to {self._folder}: {error}") from error
        return self._folder
