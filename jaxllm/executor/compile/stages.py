"""The programs of a stage of layers that is not the last, and what goes from one stage to the next."""

from dataclasses import asdict, dataclass
from functools import partial

import jax
from jax.sharding import Mesh, NamedSharding
from jax.typing import DTypeLike

from jaxllm.executor.compile.arrays import (
    LEAF,
    Arrays,
    make_copy_pages,
    make_empty_state,
    make_set_pages,
    shardings,
)
from jaxllm.executor.compile.buckets import Bucket, Buckets
from jaxllm.executor.compile.program import Program, ProgramSet
from jaxllm.executor.step_program import StageState, make_stage_step
from jaxllm.models.sharding import sharding, token_axis
from jaxllm.models.stage import Stage


@dataclass(frozen=True)
class Handover:
    """Hidden states of a step [T, D] as a stage on a mesh has them: split by tokens where the residual stream is."""

    mesh: Mesh | None
    hidden_size: int
    dtype: DTypeLike

    def array(self, bucket: Bucket) -> jax.ShapeDtypeStruct:
        """Of a step."""
        return jax.ShapeDtypeStruct((bucket.tokens, self.hidden_size), self.dtype, sharding=self.place(bucket))

    def place(self, bucket: Bucket) -> NamedSharding | None:
        """Where they are."""
        return sharding(self.mesh, token_axis(self.mesh, bucket.tokens), "hidden")


def stage_programs(
    arrays: Arrays[StageState], buckets: Buckets, handover: Handover, stage: Stage
) -> ProgramSet[StageState]:
    """The programs of a stage that gives hidden states."""
    return ProgramSet(
        step=partial(_step, arrays, handover, stage),
        others={
            "empty_state": make_empty_state(arrays),
            "set_pages": make_set_pages(arrays),
            "copy_pages": make_copy_pages(arrays),
        },
        buckets=buckets,
        shape=arrays.shape,
        parameters=arrays.parameters,
        state=arrays.state,
        options={"max_logprobs": arrays.shape.max_logprobs, "stage": asdict(stage)},
        mesh=arrays.mesh,
        uses_native_kernels=arrays.uses_native_kernels,
    )


def _step(arrays: Arrays[StageState], handover: Handover, stage: Stage, bucket: Bucket) -> Program:
    return arrays.program(
        f"step_{bucket.tokens}_tokens",
        make_stage_step(arrays.graph, arrays.shape, bucket),
        arrays.state,
        arrays.host((arrays.shape.layout(bucket).size,)),
        *(() if stage.is_first else (handover.array(bucket),)),
        result=(LEAF, arrays.state),
        donated=(1,),
        out_shardings=(handover.place(bucket), shardings(arrays.state)),
    )
