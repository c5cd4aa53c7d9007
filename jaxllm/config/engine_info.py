"""The description of an engine once it is ready."""

from typing import Literal

import msgspec

from jaxllm.kv.groups import CacheGroups

Operation = Literal["attention", "linear", "mm_encoder_attn", "moe", "sampling"]
"""Operations with several implementations: attention, products with quantized matrices and experts, attention in
encoders of images and sound, sampling."""


class KernelChoice(msgspec.Struct, frozen=True):
    """The implementation of an operation.

    `problem` says why it is not the fastest one, where that failed its self-test.
    """

    name: str
    problem: str | None = None


class PoolingInfo(msgspec.Struct, frozen=True, kw_only=True):
    """How a model pools: see `jaxllm.pooling.settings.PoolingSettings`.

    `tasks` are what requests may ask for, the default first. `size` is the length of an embedding or the number of
    classes, which `labels` names; an adapter may have up to `most_labels`. `answers` are the two tokens that a language
    model is to choose from, where its score is the probability of the second.
    """

    tasks: tuple[str, ...]
    pooling_type: str
    size: int
    labels: tuple[str, ...] = ()
    matryoshka: tuple[int, ...] | None = None
    answers: tuple[str, ...] = ()
    most_labels: int = 0


class StageInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Layers `start` to `stop` on devices of their own: how many, and what each of them holds."""

    start: int
    stop: int
    num_devices: int
    weight_bytes: int
    cache_bytes: int


class ImageInfo(msgspec.Struct, frozen=True, kw_only=True):
    """How images become rows: patches of `patch_size` pixels each way, and a square of `merge` each way is one row.

    A row stands in place of `token_id`. A crop has at most `most_patches`, or `side` or `tile_side` each way, and
    becomes `first_rows` besides those of its squares, or `crop_rows` in all. A request has at most `most_rows`. With
    `has_grid_positions` the rows of an image must stand next to each other. `spans` says which tokens of a prompt see
    one another, see `jaxllm.requests.spans`, and `longest_span` how many at most. A patch of a video has `frames`; its
    rows may have a token of their own, and a second of it takes `tokens_per_second` positions, see `TowerPlan`. Patches
    of the byte `fill` make whole squares of crops.
    """

    patch_size: int
    merge: int
    token_id: int
    most_patches: int
    most_rows: int
    side: int | None = None
    tile_side: int | None = None
    first_rows: int = 0
    has_grid_positions: bool = False
    spans: Literal["images", "prompt"] | None = None
    longest_span: int = 0
    crop_rows: int | None = None
    frames: int = 1
    video_token_id: int | None = None
    tokens_per_second: int | None = None
    fill: int | None = None

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The tokens that stand where rows go."""
        return (self.token_id,) if self.video_token_id is None else (self.token_id, self.video_token_id)

    def rows_of(self, num_patches: int) -> int:
        """Rows that a crop of so many patches becomes."""
        return self.first_rows + num_patches // self.merge**2 if self.crop_rows is None else self.crop_rows


class SoundInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a request's window of sound is: log-mel features float32 [num_bins, num_frames].

    The first `context` frames are those before it, or below 0 where there are none.
    Its rows stand in place of `token_id`, one for `frames_per_row`, and for fewer at its end with `fills_up`; a request
    has at most `most_rows`. `windows` says how longer sound becomes several, see `jaxllm.models.towers.sound`. Without
    a token, every request has one window.
    """

    num_bins: int
    num_frames: int
    token_id: int | None = None
    most_rows: int = 0
    frames_per_row: int = 4
    windows: Literal["one", "apart", "together", "cut", "led"] = "one"
    fills_up: bool = False
    context: int = 0

    def rows_of(self, num_frames: int) -> int:
        """Rows of a window with `num_frames` frames of sound."""
        return (num_frames + (self.frames_per_row - 1 if self.fills_up else 1)) // self.frames_per_row

    @property
    def least_frames(self) -> int:
        """Frames of the shortest sound that has a row."""
        return 1 if self.fills_up else self.frames_per_row - 1


class KVEventSource(msgspec.Struct, frozen=True, kw_only=True):
    """Where an engine publishes the events of its prefix cache: addresses, as they are bound, and limits in batches."""

    data_parallel_rank: int
    endpoint: str
    replay_endpoint: str | None
    snapshot_endpoint: str | None
    topic: str
    buffer_steps: int
    hwm: int
    max_queue_size: int


class KVTransferInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Which requests an engine takes that are about pages of other engines; see `KVTransferSettings`."""

    role: str
    has_secret: bool
    peers: tuple[str, ...] = ()
    address: str | None = None
    """Where others fetch pages, as host and port."""


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The model, its limits and its memory: all that a process without the engine must know of it.

    `num_pages` counts the null page, which is never handed out; `block_size` is the tokens in a page; `num_shapes` the
    compiled step shapes. With several `data_shards`, limits and pages are those of each. `model_folder` holds the
    model's small files. `pooling` is None for a model that generates; one that pools has no KV cache.
    `kernels` has the implementation of each operation. `planned_step_seconds` is what a full step of each shape should
    take, by its tokens, where the chip is known.
    `cache_windows` has the window of each page table of a request, 0 for none. `kv_cache_dtype` is NumPy's name of the
    KV cache's type, 'auto' where there is no cache. `stages` are those of pipeline parallel, none where there is one.
    `embedding_size` is the width of embeddings where prompts may be such, else None.
    """

    model: str
    model_folder: str
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_logprobs: int
    num_pages: int
    block_size: int
    enable_prefix_caching: bool
    dtype: str
    device_kind: str
    num_devices: int
    num_shapes: int
    max_loras: int = 0
    """Slots for LoRA adapters; 0 where requests may have none."""
    default_adapters: dict[str, str] = {}
    """Folders of the adapters for requests that name none, by the medium that these have: image, video, audio."""
    max_drafts: int = 0
    """Most drafts of a request in a step; 0 where none are made."""
    pooling: PoolingInfo | None = None
    structured_outputs_backend: str = "llguidance"
    kernels: dict[Operation, KernelChoice] = {}
    planned_step_seconds: dict[int, float] = {}
    peaks: tuple[float, float] = (0.0, 0.0)
    """Operations and bytes per second of a device at most, where the work of steps is counted and they are known."""
    cache_windows: tuple[int, ...] = (0,)
    data_shards: int = 1
    kv_cache_dtype: str = "auto"
    stages: tuple[StageInfo, ...] = ()
    logprobs_mode: str = "raw_logprobs"
    embedding_size: int | None = None
    images: ImageInfo | None = None
    """None where requests may have no images."""
    sound: SoundInfo | None = None
    """None where requests may have no sound."""
    kv_events: KVEventSource | None = None
    """None where events of the prefix cache are not published."""

    kv_transfer: KVTransferInfo | None = None
    """None where no pages go to other engines or come from them."""
    tiers: tuple[str, ...] = ()
    """Where copies of KV pages are, for people: host memory, and files."""

    @property
    def transcribes(self) -> bool:
        """Whether every request has a window of sound that the model turns into text."""
        return self.sound is not None and self.sound.token_id is None

    @property
    def problems(self) -> tuple[str, ...]:
        """Why kernels are not the fastest ones."""
        return tuple(choice.problem for choice in self.kernels.values() if choice.problem is not None)

    @property
    def max_running(self) -> int:
        """Requests that run at once, in all data shards."""
        return self.data_shards * self.max_num_seqs

    @property
    def kv_tokens(self) -> int:
        """Tokens that the KV cache holds, of requests of the longest length."""
        return self.data_shards * self.cache_groups.tokens_held(self.num_pages - 1, self.max_model_len)

    @property
    def cache_groups(self) -> CacheGroups:
        """The page tables of a request."""
        margin = int(self.enable_prefix_caching)
        return CacheGroups(self.cache_windows, self.block_size, self.max_num_batched_tokens, margin=margin)

    @property
    def max_concurrency(self) -> float:
        """Requests of the longest length that the KV cache holds at once."""
        return self.kv_tokens / self.max_model_len
