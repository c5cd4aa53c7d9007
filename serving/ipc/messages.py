"""Messages between client and engine process: typed values, never pickled objects."""

import signal
from typing import Any, Literal

import ml_dtypes
import msgspec
import numpy as np

from jaxllm.config import EngineConfig
from jaxllm.config.engine_info import EngineInfo
from jaxllm.engine.stats import StepStats
from jaxllm.errors import RequestError
from jaxllm.pooling.params import PoolingParams
from jaxllm.pooling.request import PoolingRequest
from jaxllm.requests.lora_request import LoRARequest
from jaxllm.requests.media import Arrangement, ImageCrop, MediaItem, PromptMedia
from jaxllm.requests.outputs import EngineOutput
from jaxllm.requests.owners import Owner
from jaxllm.requests.prompt_embeds import PromptEmbeds
from jaxllm.requests.request import Request
from jaxllm.requests.sampling_params import SamplingParams

STACKS_SIGNAL = signal.SIGUSR1
"""Has an engine process write to its log what each of its threads does, even where Python does not run."""


class Hello(msgspec.Struct, tag=True):
    """The engine process is up: its version must be the client's. The first message of all."""

    version: str


class Configure(msgspec.Struct, tag=True):
    """The client's answer to `Hello`: what to load, and how to log."""

    config: EngineConfig
    log_level: str = "info"
    json_logs: bool = False
    stale_weights: str | None = None
    """Why the checkpoint's weights are not those that are wanted, if that is so: an update must come first."""


class AttachClient(msgspec.Struct, tag=True):
    """Serve one more client, whose sockets lie in this folder."""

    folder: str


class DetachClient(msgspec.Struct, tag=True):
    """A client that was attached is gone: end its requests, and forget it."""

    folder: str


class Loading(msgspec.Struct, tag=True):
    """How far loading has come; see `jaxllm.config.progress`."""

    stage: str
    done: int
    total: int


class Ready(msgspec.Struct, tag=True):
    """The engine takes requests from now on."""

    info: EngineInfo


class Failed(msgspec.Struct, tag=True):
    """The engine ends here, while loading or later. `kind` is the name of a class in `jaxllm.errors`."""

    kind: str
    message: str


class Weight(msgspec.Struct):
    """A tensor of a checkpoint: NumPy's bytes know no bfloat16, so they come as uint8 [bytes] with a shape and type."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: np.ndarray

    @classmethod
    def of(cls, name: str, array: np.ndarray) -> "Weight":
        """From an array of the host."""
        return cls(name, array.dtype.name, array.shape, np.ascontiguousarray(array).reshape(-1).view(np.uint8))

    def array(self) -> np.ndarray:
        """The array, read-only."""
        dtype = getattr(ml_dtypes, self.dtype, None) or self.dtype
        return self.data.view(np.dtype(dtype)).reshape(self.shape)


class Embeds(msgspec.Struct):
    """See `PromptEmbeds`: the rows travel as a tensor does."""

    rows: Weight
    places: np.ndarray
    page_keys: tuple[bytes, ...]

    @classmethod
    def of(cls, embeds: PromptEmbeds) -> "Embeds":
        """From those of a request."""
        return cls(Weight.of("", embeds.rows), embeds.places, embeds.page_keys)

    def embeds(self) -> PromptEmbeds:
        """The prompt embeddings of a request."""
        return PromptEmbeds(self.rows.array(), self.places, self.page_keys)


class Media(msgspec.Struct):
    """See `PromptMedia`. An image that occurs several times travels once.

    `images` are digest, rows that are kept, their arrangement, for each crop height, width and patches, features of
    sound, how many frames of these are sound, and a video's times; `order` are indexes of them.
    """

    images: list[
        tuple[
            bytes,
            int,
            tuple[np.ndarray, np.ndarray, np.ndarray | None] | None,
            list[tuple[int, int, Weight]],
            Weight | None,
            int,
            tuple[int, ...],
        ]
    ]
    order: list[int]
    places: np.ndarray
    page_keys: tuple[bytes, ...]
    spans: np.ndarray

    @classmethod
    def of(cls, media: PromptMedia) -> "Media":
        """From those of a request."""
        distinct = {item.digest: item for item in media.items}
        numbers = {digest: number for number, digest in enumerate(distinct)}
        images = [
            (
                item.digest,
                item.num_kept,
                _arrangement(item),
                [_crop(crop) for crop in item.crops],
                None if item.features is None else Weight.of("", item.features),
                item.num_frames,
                item.times,
            )
            for item in distinct.values()
        ]
        order = [numbers[item.digest] for item in media.items]
        return cls(images, order, media.places, media.page_keys, media.spans)

    def media(self) -> PromptMedia:
        """The images of a request."""
        images = [
            MediaItem(
                digest,
                tuple(ImageCrop(patches.array(), height, width) for height, width, patches in crops),
                num_kept,
                None if arrangement is None else Arrangement(*arrangement),
                None if features is None else features.array(),
                num_frames,
                times,
            )
            for digest, num_kept, arrangement, crops, features, num_frames, times in self.images
        ]
        return PromptMedia(tuple(images[number] for number in self.order), self.places, self.page_keys, self.spans)


def _arrangement(item: MediaItem) -> tuple[np.ndarray, np.ndarray, np.ndarray | None] | None:
    found = item.arrangement
    return None if found is None else (found.kept, found.order, found.weights)


def _crop(crop: ImageCrop) -> tuple[int, int, Weight]:
    return crop.height, crop.width, Weight.of("", crop.patches)


class AddedSequence(msgspec.Struct, array_like=True):
    """One of the sequences of an `Add`: its name, its parameters, and see `Request` for the others.

    It has output if another engine had it before, which has ended.
    """

    request_id: str
    params: SamplingParams
    draw_number: int | None = None
    output_token_ids: list[int] = []


class Add(msgspec.Struct, tag=True):
    """Sequences to continue one prompt with; they share all but their names and parameters.

    prompt_token_ids: int32 [prompt length].
    """

    prompt_token_ids: np.ndarray
    sequences: list[AddedSequence]
    priority: int
    cache_salt: str | None
    eos_token_ids: tuple[int, ...]
    owner: Owner
    grammar_bytes: int = 0
    embeds: Embeds | None = None
    lora_request: LoRARequest | None = None
    media: Media | None = None

    @classmethod
    def of(cls, requests: list[Request]) -> "Add":
        """The message for requests that share their prompt."""
        first = requests[0]
        sequences = [
            AddedSequence(request.request_id, request.params, request.draw_number, request.output_token_ids)
            for request in requests
        ]
        return cls(
            first.prompt_token_ids,
            sequences,
            first.priority,
            first.cache_salt,
            first.eos_token_ids,
            first.owner,
            first.grammar_bytes,
            None if first.prompt_embeds is None else Embeds.of(first.prompt_embeds),
            first.lora_request,
            None if first.media is None else Media.of(first.media),
        )

    def requests(self) -> list[Request]:
        """The requests that the message stands for."""
        embeds = None if self.embeds is None else self.embeds.embeds()
        media = None if self.media is None else self.media.media()
        return [
            Request(
                request_id=each.request_id,
                prompt_token_ids=self.prompt_token_ids,
                params=each.params,
                priority=self.priority,
                cache_salt=self.cache_salt,
                eos_token_ids=self.eos_token_ids,
                owner=self.owner,
                prompt_embeds=embeds,
                media=media,
                grammar_bytes=self.grammar_bytes,
                lora_request=self.lora_request,
                draw_number=each.draw_number,
                output_token_ids=each.output_token_ids,
            )
            for each in self.sequences
        ]


class Pool(msgspec.Struct, tag=True):
    """One text for a pooling model, see `jaxllm.pooling.request.PoolingRequest`.

    prompt_token_ids: int32 [length].
    """

    request_id: str
    prompt_token_ids: np.ndarray
    params: PoolingParams
    priority: int
    second_text: int | None
    owner: Owner
    lora_request: LoRARequest | None = None
    media: Media | None = None

    @classmethod
    def of(cls, request: PoolingRequest) -> "Pool":
        """The message for a request."""
        given = {name: getattr(request, name) for name in cls.__struct_fields__}
        return cls(**{**given, "media": None if request.media is None else Media.of(request.media)})

    def request(self) -> PoolingRequest:
        """The request that the message stands for."""
        given = {name: getattr(self, name) for name in self.__struct_fields__}
        return PoolingRequest(**{**given, "media": None if self.media is None else self.media.media()})


class Abort(msgspec.Struct, tag=True):
    """End requests without further outputs."""

    request_ids: list[str]


class Finish(msgspec.Struct, tag=True):
    """End requests whose text holds a stop string: (request id, stop string)."""

    stopped: list[tuple[str, str]]


class Reconcile(msgspec.Struct, tag=True):
    """Every request that the client expects outputs from; answered by `Reconciled` with the same number.

    What only the engine knows is ended there, what only the client knows is told. It also asks whether the loop that
    runs the steps is alive.
    """

    number: int
    request_ids: list[str]


class Reconciled(msgspec.Struct, tag=True):
    """The answer: requests that the engine does not know. It comes after all outputs from before the question."""

    number: int
    unknown: list[str]


class Credit(msgspec.Struct, tag=True):
    """An empty acknowledgement; the frame numbers carry the count."""


ControlMethod = Literal[
    "sleep",
    "wake_up",
    "is_sleeping",
    "pause",
    "resume",
    "is_paused",
    "start_weight_update",
    "update_weights_from",
    "finish_weight_update",
    "abort_weight_update",
    "save_sharded_state",
    "add_lora",
    "remove_lora",
    "pin_lora",
]
"""Methods of `jaxllm.engine.control.EngineControl`."""
EngineMethod = Literal[
    "reset_prefix_cache", "debug_state", "live_view", "model_view", "start_profile", "stop_profile", ControlMethod
]
"""Calls of a client to the engine alongside requests."""
CallResult = bool | str | int | None


class Call(msgspec.Struct, tag=True):
    """Call a method of the engine; answered by `Called` with the same number."""

    number: int
    method: EngineMethod
    arguments: dict[str, Any] = {}


class UpdateWeights(msgspec.Struct, tag=True):
    """Replace tensors, after `start_weight_update`; answered as a `Call` is."""

    number: int
    weights: list[Weight]


class Called(msgspec.Struct, tag=True):
    """The answer: what the method returned, or what the `RequestError` says that it raised."""

    number: int
    result: CallResult = None
    refusal: str | None = None
    parameter: str | None = None

    def outcome(self) -> CallResult:
        """The result. Raises the `RequestError`."""
        if self.refusal is not None:
            raise RequestError(self.refusal, self.parameter)
        return self.result


class Release(msgspec.Struct, tag=True):
    """The engine has opened these shared arrays: the client may let go of them."""

    handles: list[int]


class Outputs(msgspec.Struct, tag=True):
    """The outputs of one step, or of several merged; sent after every step, also when there are no outputs."""

    outputs: list[EngineOutput]
    stats: StepStats | None


ToEngine = Configure | AttachClient | DetachClient | Add | Pool | Abort | Finish | Reconcile | Call | UpdateWeights
"""The messages of a client."""

FromEngine = Hello | Loading | Ready | Failed | Outputs | Reconciled | Credit | Called | Release
"""The messages of an engine process."""
