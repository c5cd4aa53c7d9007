"""What programs of an engine are made from, and what a program of one is."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.typing import DTypeLike

from jaxllm.executor.compile.buckets import Bucket
from jaxllm.executor.compile.program import Shapes
from jaxllm.executor.device_state import DeviceState, StageState
from jaxllm.executor.step_inputs import StepShape
from jaxllm.models.causal_lm import CausalLM
from jaxllm.models.sharding import sharding, token_axis
from jaxllm.models.stage import Stage

if TYPE_CHECKING:
    from jaxllm.executor.sampler.compiled_processors import CompiledProcessors
    from jaxllm.models.layers.adapter_slots import AdaptedGraph
    from jaxllm.models.towers.plan import TowerPlan
    from jaxllm.models.towers.sound import SoundPlan

State = TypeVar("State", bound=StageState)


@dataclass(frozen=True)
class ProgramBody:
    """What a program computes: `function(*what it reads, *what it updates, *inputs)`.

    It returns the result, if there is one, and then each part of the state that it updates or writes; a single one of
    these as it is, more as a tuple.
    """

    function: Callable[..., Any]
    inputs: tuple[Shapes, ...] = ()
    """Arrays of the host, or of the stage before."""
    result_sharding: NamedSharding | None = None
    """Where the result goes; None: by the record of the program."""


@dataclass(frozen=True)
class Handover:
    """Hidden states of a step [T, D] as a stage on a mesh has them: split by tokens where the residual stream is."""

    mesh: Mesh | None
    hidden_size: int
    dtype: DTypeLike

    def array(self, bucket: Bucket) -> jax.ShapeDtypeStruct:
        """The hidden states of a step."""
        return jax.ShapeDtypeStruct((bucket.tokens, self.hidden_size), self.dtype, sharding=self.place(bucket))

    def place(self, bucket: Bucket) -> NamedSharding | None:
        """Where they are."""
        return sharding(self.mesh, token_axis(self.mesh, bucket.tokens), "hidden")


@dataclass(frozen=True)
class ProgramContext(Generic[State]):
    """The model's graph, and the shapes of all that programs of an engine, or of one of its stages, take.

    `parameters`, `adapters` and `state` are called so in `DeviceCalls` too: the paths of a `ProgramRecord` lead to
    shapes here and to arrays there.
    """

    graph: nnx.GraphDef[CausalLM]
    parameters: Shapes
    state: State
    shape: StepShape
    mesh: Mesh | None
    uses_native_kernels: bool
    precision: str | None
    """Precision of matrix products that do not set their own."""
    handover: Handover
    stage: Stage | None = None
    """The layers that it is of; None: all."""
    processors: "CompiledProcessors | None" = None
    has_host_processors: bool = False
    """Whether logits processors run on the host."""
    adapted: "AdaptedGraph | None" = None
    """The graph of the model with slots for adapters, where there are any: steps run it."""
    adapters: tuple[jax.ShapeDtypeStruct, ...] = ()
    """The arrays of these slots."""
    tower: "TowerPlan | None" = None
    """What makes rows of images, where the engine takes some."""
    sound: "SoundPlan | None" = None
    """What hears, if anything does."""
    plain_steps: tuple[Bucket, ...] = ()
    """Steps that are also there without the drafter, if there is one."""
    transfer_sizes: tuple[int, ...] = ()
    """Pages of each call that brings pages to the host or back, if there are any."""
    row_squares: tuple[jax.ShapeDtypeStruct, ...] = ()
    """What the program of this name measures, if slots have vectors."""

    @property
    def plain_state(self) -> DeviceState:
        """See `DeviceCalls.plain_state`."""
        return cast(DeviceState, self.state).plain

    @property
    def is_last(self) -> bool:
        """Whether it has the layers that tokens are sampled after."""
        return self.stage is None or self.stage.is_last

    @property
    def is_first(self) -> bool:
        """Whether it has the layers that tokens go into."""
        return self.stage is None or self.stage.is_first

    def host(self, shape: tuple[int, ...] = (), dtype: Any = np.int32, *axes: str | None) -> jax.ShapeDtypeStruct:
        """An array that comes from the host, whole on every device unless `axes` say otherwise."""
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding(self.mesh, *axes))

    def of_shards(self, *shape: int) -> jax.ShapeDtypeStruct:
        """An int32 array that comes from the host, one of `shape` for each data shard, along its first axis."""
        shards = self.shape.shards
        if shards == 1:
            return self.host(shape)
        first, *others = shape or (1,)
        return self.host((shards * first, *others), np.int32, "shards")

    def received(self, bucket: Bucket) -> tuple[jax.ShapeDtypeStruct, ...]:
        """What a step takes of the stage before, if there is one."""
        return () if self.is_first else (self.handover.array(bucket),)

    @property
    def slots(self) -> int:
        """Slots of a data shard."""
        return int(self.state.page_table.shape[0]) // self.shape.shards

    @property
    def by_shard(self) -> NamedSharding | None:
        """Where results go that each shard has for its rows."""
        return sharding(self.mesh, "shards") if self.shape.shards > 1 else self.whole

    @property
    def whole(self) -> NamedSharding | None:
        """Where results go that the host reads."""
        return sharding(self.mesh)
