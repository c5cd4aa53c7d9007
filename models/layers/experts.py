"""A mixture of experts: MLPs, and a few of them for every token; see `ExpertsPlan`.

No token is dropped: an expert takes as many as choose it. A token's result is the sum over its experts in the order of
their scores, so that it does not depend on what else is in the batch.

Devices share each expert (tensor parallel) or have some of the experts each (expert parallel). Either way they see all
tokens, and one sum over the devices follows. With data shards the devices are those of all shards: their tokens are
gathered, and each shard gets the sums of its own.
"""

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jax.sharding import PartitionSpec

from jaxllm.models.config import ModelConfig
from jaxllm.models.forward_context import ForwardContext
from jaxllm.models.layers.activation import clamped, find_activation
from jaxllm.models.layers.expert_slots import ExpertSlots
from jaxllm.models.layers.linear import Linear
from jaxllm.models.layers.matrix import Matrix
from jaxllm.models.layers.mlp import make_mlp
from jaxllm.models.layers.norm import make_norm
from jaxllm.models.layers.parameter import AS_THEY_ARE, merged, parameter
from jaxllm.models.layers.router import Router
from jaxllm.models.mlp_plan import ExpertsPlan
from jaxllm.models.options import AdapterShape, ForwardOptions
from jaxllm.models.sharding import (
    DATA,
    MODEL,
    all_parallel,
    data_parallel,
    model_parallel,
    over_model,
    partition,
    sharding,
)
from jaxllm.pallas_kernels.grouped_matmul import choose_grouped_layout, grouped_matmul
from jaxllm.pallas_kernels.linear import Weight
from jaxllm.pallas_kernels.low_rank import GroupedLowRank, RowBlocks, add_grouped_low_rank

if TYPE_CHECKING:
    from jaxllm.pallas_kernels.linear.quantized import QuantizedLayout
    from jaxllm.pallas_kernels.linear.weight_type import WeightType

Operands = tuple[Weight, jax.Array | None, GroupedLowRank | None]
"""Weight, bias, and the matrices of adapters."""


class ExpertLinear(Matrix):
    """A linear layer of every expert: `weight` [E * out, in], one expert after the other, and maybe `bias` [E * out].

    `parts` are the rows of one expert by the name of their tensor. `axes` are the logical names of (E * out, in).
    """

    def __init__(
        self,
        experts: int,
        in_size: int,
        parts: dict[str, int],
        *,
        bias: bool,
        dtype: jnp.dtype,
        axes: tuple[str, str],
        options: ForwardOptions,
    ) -> None:
        # Where the rows of each expert are split, a device has its part of all of them.
        shared_by = {"expert_mlp": all_parallel(options.mesh), "heads": model_parallel(options.mesh)}
        blocks, across = (shared_by.get(axis, 1) for axis in axes)
        rows = merged(blocks, {name: (size, AS_THEY_ARE) for name, size in parts.items()}, experts)
        one = (sum(parts.values()), in_size)
        layout = choose_grouped_layout(
            experts,
            one,
            dtype,
            native=options.native_matmul,
            multiplies_pairs=options.multiplies_pairs,
            backend=options.moe_backend,
            parts=(blocks, across),
        )
        super().__init__(layout, dtype, axes, rows, options)
        self.bias = parameter(layout.shape[:1], dtype, sharding(options.mesh, axes[0]), rows) if bias else None
        self.experts, self.blocks, self.across = experts, blocks, across
        self.is_native, self.backend = options.native_matmul, options.moe_backend
        self.adapters: ExpertSlots | None = None

    def add_slots(self, shape: AdapterShape) -> None:
        """See `TakesSlots`."""
        if shape.expert_rank:
            self.adapters = nnx.data(ExpertSlots(self, shape))

    def quantized_layout(self, kind: "WeightType") -> "QuantizedLayout":
        """See `Matrix`."""
        # Few models are quantized: starts of others are faster without the import.
        from jaxllm.pallas_kernels.linear.quantized_layouts import choose_quantized_layout

        rows, in_size = self.layout.shape
        one = (rows // self.experts, in_size)
        parts = self.blocks, self.across
        return choose_quantized_layout(
            one, kind, groups=self.experts, native=self.is_native, backend=self.backend, parts=parts
        )

    def set_weight_type(self, kind: "WeightType") -> None:
        """See `Matrix`. Devices that share the inputs of a product work each with its own, so these must be whole."""
        super().set_weight_type(kind)
        if self.across > 1:
            # Few models are quantized: starts of others are faster without the import.
            from jaxllm.models.layers.quantized import check_shares_inputs

            check_shares_inputs(self.layout.shape[1], kind, self.across)

    def operands(self) -> Operands:
        """Those of all devices."""
        adapters = None if self.adapters is None else self.adapters.operand()
        return self.matrix, None if self.bias is None else self.bias[...], adapters

    def specs(self, operands: Operands) -> Any:
        """How its operands are split, each an array in these."""
        adapters = None if self.adapters is None else self.adapters.partitions()
        return self.partitions(), None if operands[1] is None else partition(self.axes[0]), adapters


class MixtureOfExperts(nnx.Module):
    """A router, its experts, and what is shared by all tokens."""

    def __init__(self, config: ModelConfig, plan: ExpertsPlan, *, dtype: jnp.dtype, options: ForwardOptions) -> None:
        find_activation(plan.activation)
        self.plan, self.mesh, self.platform = plan, options.mesh, options.platform
        self.is_expert_parallel = options.expert_parallel and all_parallel(options.mesh) > 1
        size = config.hidden_size
        linear = partial(ExpertLinear, plan.count, bias=plan.bias, dtype=dtype, options=options)
        wide, narrow = (
            ("experts", "hidden") if self.is_expert_parallel else ("expert_mlp", "hidden"),
            ("hidden", "expert_mlp"),
        )
        self.router = Router(size, plan, dtype=dtype, options=options, vocab_size=config.vocab_size)
        parts = ("expert_gate", "expert_up") if plan.is_gated else ("expert_up",)
        self.gate_up = linear(size, dict.fromkeys(parts, plan.size), axes=wide)
        self.down = linear(plan.size, {"expert_down": size}, axes=wide if self.is_expert_parallel else narrow)
        whole = sharding(options.mesh, None)
        self.output_bias = parameter((size,), dtype, whole) if plan.output_bias else None
        self.shared = None if plan.shared is None else make_mlp(config, plan.shared, dtype=dtype, options=options)
        gate = partial(Linear, size, 1, bias=False, dtype=dtype, axes=(None, "hidden"), options=options)
        self.shared_gate = gate() if plan.shared_gate else None
        norm = partial(make_norm, plan.norm, size, dtype=dtype, options=options)
        self.expert_norm, self.expert_output_norm = norm(), norm()
        self.shared_norm, self.shared_output_norm = norm(), norm()

    def __call__(self, x: jax.Array, context: ForwardContext) -> jax.Array:
        """Map [T, D] to [T, D]."""
        experts, weights = self.router(x, context)
        if context.num_rows is not None:
            # Padding chooses nobody: experts that it alone has would be read for nothing.
            is_used = jnp.arange(len(x), dtype=jnp.int32) < context.num_rows
            experts = jnp.where(is_used[:, None], experts, self.plan.count)
        slots = None if self.gate_up.adapters is None or context.adapters is None else context.adapters.slots
        normed = self.expert_norm(x)
        kept = None if not self.plan.identities else self._kept(normed, experts, weights)
        # Those that give their input back are in no group.
        experts = experts if kept is None else jnp.minimum(experts, self.plan.count)
        out = self._experts(normed, _Choice(experts, weights, slots))
        out = self.expert_output_norm(out if kept is None else out + kept)
        if self.output_bias is not None:
            out = out + self.output_bias[...]
        if self.shared is not None:
            shared = self.shared_output_norm(self.shared(self.shared_norm(x), context))
            if self.shared_gate is not None:
                shared = jax.nn.sigmoid(self.shared_gate(x, context.over_all_rows())) * shared
            out = out + shared
        return out if self.plan.scale == 1.0 else out * jnp.asarray(self.plan.scale, out.dtype)

    def _kept(self, x: jax.Array, experts: jax.Array, weights: jax.Array) -> jax.Array:
        """What experts that give their input back add, [T, D]."""
        share = jnp.where(experts >= self.plan.count, weights, 0.0).sum(axis=1, keepdims=True)
        return (x.astype(jnp.float32) * share).astype(x.dtype)

    def _experts(self, x: jax.Array, choice: "_Choice") -> jax.Array:
        """The sum of each token's experts [T, D]."""
        operands = self.gate_up.operands(), self.down.operands()
        if self.mesh is None:
            return self._own(x, choice, *operands, jnp.int32(0)).astype(x.dtype)

        shards = data_parallel(self.mesh)

        def own(x: jax.Array, choice: _Choice, gate_up: Operands, down: Operands) -> jax.Array:
            device = lax.axis_index(MODEL)
            if shards == 1:
                return lax.psum(self._own(x, choice, gate_up, down, device).astype(x.dtype), MODEL)
            x, choice = jax.tree.map(lambda leaf: lax.all_gather(leaf, DATA, tiled=True), (x, choice))
            device += lax.axis_index(DATA) * lax.axis_size(MODEL)
            parts = self._own(x, choice, gate_up, down, device).astype(x.dtype)
            return lax.psum(lax.psum_scatter(parts, DATA, tiled=True), MODEL)

        whole = PartitionSpec()
        specs = (whole, whole, self.gate_up.specs(operands[0]), self.down.specs(operands[1]))
        summed: jax.Array = over_model(own, self.mesh, specs, whole)(x, choice, *operands)
        return summed

    def _own(self, x: jax.Array, choice: "_Choice", gate_up: Operands, down: Operands, device: jax.Array) -> jax.Array:
        """One device's part of that sum, float32 [T, D]."""
        experts, weights, slots = choice
        count = self.plan.count
        if self.is_expert_parallel:
            count //= all_parallel(self.mesh)
            experts = experts - device * count
            experts = jnp.where((experts >= 0) & (experts < count), experts, count)
        by_expert = Groups.of(experts, count, slots, self.platform)
        multiply = partial(self._multiply, by_expert)
        rows = x[by_expert.order // self.plan.per_token]
        if self.plan.scales_input:
            rows = (rows * weights.reshape(-1)[by_expert.order, None]).astype(x.dtype)
            weights = jnp.ones_like(weights)
        wide = multiply(rows, gate_up).astype(x.dtype)
        # A bias of what is split inside an expert is one device's.
        is_added = self.is_expert_parallel or device == 0
        out = multiply(self._gated(wide), down, is_added)[by_expert.places].reshape(*experts.shape, -1)
        out = jnp.where((experts < count)[:, :, None], out.astype(jnp.float32) * weights[:, :, None], 0.0)
        return out.sum(axis=1)

    def _multiply(
        self, groups: "Groups", rows: jax.Array, operands: Operands, is_added: jax.Array | bool = True
    ) -> jax.Array:
        """Rows in order of their experts times the matrix of each, and its bias, if it is to be added.

        Products have the type of the rows: besides the weights, what many rows write counts as much.
        """
        weight, bias, adapters = operands
        out = grouped_matmul(rows, weight, groups.sizes, out_dtype=rows.dtype, platform=self.platform)
        if groups.blocks is not None:
            assert adapters is not None
            out = add_grouped_low_rank(out, rows, adapters, groups.blocks, self.platform)
        if bias is None:
            return out
        own = bias.reshape(len(groups.sizes), -1).astype(jnp.float32)[groups.experts]
        return out.astype(jnp.float32) + jnp.where(is_added, own, 0.0)

    def _gated(self, wide: jax.Array) -> jax.Array:
        """From [R, 2 I], or [R, I] without gates, what the second product takes, [R, I]."""
        if not self.plan.is_gated:
            return find_activation(self.plan.activation)(wide)
        gate, up = jnp.split(wide, 2, axis=-1)
        if self.plan.clamped is None:
            return find_activation(self.plan.activation)(gate) * up
        return clamped(gate, up, self.plan.clamped)


class _Choice(NamedTuple):
    """The experts of every token, int32 [T, k], their weights, float32 [T, k], and its adapter's slot, int32 [T]."""

    experts: jax.Array
    weights: jax.Array
    slots: jax.Array | None
    """None where experts have no adapters."""


class Groups(NamedTuple):
    """Choices of all tokens, in order of the expert, and then of the adapter's slot."""

    order: jax.Array
    """int32 [T * k]: which choice is at a place."""
    places: jax.Array
    """The inverse: at which place a choice is."""
    experts: jax.Array
    """int32 [T * k] of the choice at a place; one beyond the last is the last."""
    sizes: jax.Array
    """int32 [E]: how often an expert was chosen."""
    blocks: RowBlocks | None
    """Choices of tokens with an adapter; None where experts have none."""

    @classmethod
    def of(cls, experts: jax.Array, count: int, slots: jax.Array | None, platform: str) -> "Groups":
        """Groups of `experts` int32 [T, k]; choices of number `count` come last, and are in no group."""
        flat, blocks = experts.reshape(-1), None
        if slots is None:
            order = jnp.argsort(flat, stable=True).astype(jnp.int32)
        else:
            of_choice = jnp.repeat(slots, experts.shape[1])
            order = jnp.lexsort((of_choice, flat)).astype(jnp.int32)
            blocks = RowBlocks.of(of_choice[order], flat[order], count, platform)
        numbers = jnp.arange(len(flat), dtype=jnp.int32)
        places = jnp.zeros_like(order).at[order].set(numbers, unique_indices=True)
        sizes = (flat[:, None] == jnp.arange(count, dtype=jnp.int32)).sum(axis=0, dtype=jnp.int32)
        return cls(order, places, jnp.minimum(flat[order], count - 1), sizes, blocks)
