"""The layers of a model, run as a loop or as one scan, after one interface.

Which is faster depends on the platform. A scan over stacked weights makes compile time independent of depth, and on
TPU costs nothing at run time. On CPU and GPU the compiler copies each layer's weights out of the stack, so a loop is
the better choice there, unless a kernel reads them (`LayerOf`). In both the cache of all layers is carried along whole
and indexed inside the layer: passed as scan inputs and outputs it would be copied.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from jaxllm.models.attention_plan import RopeConfig
from jaxllm.models.batch import LayerPaging
from jaxllm.models.cache import Cache
from jaxllm.models.cache_plan import CachePlan
from jaxllm.models.errors import ModelError
from jaxllm.models.forward_context import ALL_ROWS, EntryPages, ForwardContext, LayerContext, SharedBlocks
from jaxllm.models.layers.parameter import LayerOf, placeholder
from jaxllm.models.layers.rope import Rotation
from jaxllm.models.pattern import Segment, segments_of
from jaxllm.models.plan import LayerPlan
from jaxllm.pallas_kernels.ragged_batch import RaggedBatch
from jaxllm.pallas_kernels.recurrence.rows import StateRows

Tapped = tuple[jax.Array, ...]
"""The inputs [T, D] of some layers."""

Hidden = tuple[jax.Array, Cache]
"""Hidden states [T, D] and the cache."""

Carry = tuple[jax.Array, Cache, Tapped]

Rotations = tuple[Rotation, ...]
"""One for each of `ropes_of`."""

ByLayerPaging = Mapping[LayerPaging, RaggedBatch]
"""The batch as each kind of layer sees it."""


class LayerInputs(NamedTuple):
    """The context of a step for layers, besides their input."""

    rotations: Rotations
    ragged: ByLayerPaging
    states: StateRows | None
    """Where the states of rows lie; None where nothing is kept."""
    token_inputs: jax.Array | None = None
    """[L, T, size], what each layer has of the tokens, see `TokenInputPlan`."""
    shared: SharedBlocks | None = None
    """Shared by layers."""
    per_token: ForwardContext = ALL_ROWS
    """See `LayerContext`."""
    added: jax.Array | None = None
    """[n, T, D], what is added to the outputs of the first layers, where those may have images."""
    cross: RaggedBatch | None = None
    """The batch as cross attention has it, where the model hears."""


MakeLayer = Callable[[LayerPlan], nnx.Module]


def ropes_of(plans: Sequence[LayerPlan]) -> tuple[RopeConfig, ...]:
    """The rotary embeddings of layers, each once."""
    return tuple(dict.fromkeys(rope for plan in plans if (rope := _rope_of(plan)) is not None))


def _rope_of(plan: LayerPlan) -> RopeConfig | None:
    """Rotary configuration of a layer, if it has one."""
    return None if plan.recurrence is not None else plan.attention.rope


class _Layers(nnx.Module):
    """The facts of both stacks about their layers."""

    def __init__(self, plans: tuple[LayerPlan, ...], cache: CachePlan, taps: tuple[int, ...]) -> None:
        self.plans, self.cache, self.taps = plans, cache, taps

    def __call__(self, x: jax.Array, told: LayerInputs, cache: Cache) -> Hidden:
        """Run all layers on `x` [T, D]."""
        x, cache, _ = self.run(x, told, cache)
        return x, cache

    def run(self, x: jax.Array, told: LayerInputs, cache: Cache) -> Carry:
        """Run all layers on `x` [T, D], and give the inputs of those in `taps`; that of layer L is what all give."""
        raise NotImplementedError

    def _tapped(self, number: int | jax.Array, x: jax.Array, tapped: Tapped) -> Tapped:
        """`tapped` with the input of a layer, if it is asked for."""
        return tuple(jnp.where(number == tap, x, old) for tap, old in zip(self.taps, tapped, strict=True))

    def views(self) -> tuple[LayerPaging, ...]:
        """All views of a step, each once."""
        layers = range(len(self.plans))
        entries = (self.entry_view(layer) for layer in layers if self.has_entries(layer))
        return tuple(dict.fromkeys([*(self.view(layer) for layer in layers), *entries]))

    def has_entries(self, layer: int) -> bool:
        """Whether a layer keeps entries that stand for groups of tokens."""
        return bool(self.cache.entries) and self.cache.entries[layer] is not None

    def entry_view(self, layer: int) -> LayerPaging:
        """A layer's view of the pages that have its entries."""
        place = self.cache.entries[layer]
        assert place is not None
        return LayerPaging(place.table, 0, place.share, place.part)

    def entry_place(self, layer: int) -> int:
        """The layer of the cache that has a layer's entries."""
        place = self.cache.entries[layer]
        assert place is not None
        return place.place

    def view(self, layer: int) -> LayerPaging:
        """A layer's view of a step."""
        cache, plan = self.cache, self.plans[layer].attention
        heads = plan.num_heads or 0, plan.num_kv_heads or 0, plan.head_size or 0
        return LayerPaging(cache.tables[layer], plan.chunk, cache.shares[layer], cache.parts[layer], *heads)


_Traced = dict[Any, Callable[..., Any]]
"""Functions of layers, by their graphs."""


class LoopStack(_Layers):
    """Layers with parameters of their own, unrolled in Python."""

    def __init__(
        self, make_layer: MakeLayer, plans: tuple[LayerPlan, ...], cache: CachePlan, taps: tuple[int, ...]
    ) -> None:
        super().__init__(plans, cache, taps)
        self.each = nnx.List([make_layer(plan) for plan in plans])

    def run(self, x: jax.Array, told: LayerInputs, cache: Cache) -> Carry:
        """See `_Layers`."""
        inputs: dict[int, jax.Array] = {}
        rotations = _computed_once(told.rotations, told.ragged[self.view(0)])
        told, traced = told._replace(rotations=rotations), _Traced()
        for index in range(len(self.plans)):
            inputs[index] = x
            x, cache = self._run_one(index, x, told, cache, traced)
        inputs[len(self.plans)] = x
        return x, cache, tuple(inputs[tap] for tap in self.taps)

    def run_one(self, index: int, x: jax.Array, told: LayerInputs, cache: Cache) -> Hidden:
        """Run one layer alone on `x` [T, D]."""
        return self._run_one(index, x, told, cache, _Traced())

    def _run_one(self, index: int, x: jax.Array, told: LayerInputs, cache: Cache, traced: _Traced) -> Hidden:
        layer, plan, ragged = self.each[index], self.plans[index], told.ragged
        graph, parameters = nnx.split(layer)
        # Layers that are alike are traced and lowered once: a kernel takes half a second each time.
        run = traced.setdefault(graph, jax.jit(partial(_run_layer, graph)))
        group, place = self.cache.groups[index], jnp.int32(self.cache.places[index])
        rotation = _layer_rotation(plan, ropes_of(self.plans), told.rotations)
        context = LayerContext(rotation, ragged[self.view(index)], place, per_token=told.per_token)
        if group is not None:
            context = context._replace(states=told.states)
        if self.has_entries(index):
            pages = EntryPages(ragged[self.entry_view(index)].page_table, jnp.int32(self.entry_place(index)))
            context = context._replace(entries=pages)
        if told.token_inputs is not None:
            context = context._replace(token_input=told.token_inputs[index])
        if plan.shared_block is not None:
            context = context._replace(shared=told.shared)
        if plan.cross is not None:
            context = context._replace(cross=told.cross)
        x, own = run(parameters, x, cache.of(group), context)
        if plan.adds_images and told.added is not None:
            x = x + told.added[index]
        return x, cache.updated(group, own)


def _layer_rotation(plan: LayerPlan, ropes: tuple[RopeConfig, ...], rotations: Rotations) -> Rotation | None:
    """Own rotation of a layer, if it has one."""
    rope = _rope_of(plan)
    return None if rope is None else rotations[ropes.index(rope)]


def _run_layer(graph: nnx.GraphDef[Any], parameters: Any, x: jax.Array, own: Any, context: LayerContext) -> Any:
    """A layer with these parameters on `x` [T, D], and its part of the cache."""
    return nnx.merge(graph, parameters)(x, own, context)


def _computed_once(rotations: Rotations, ragged: RaggedBatch) -> Rotations:
    """The rotations' angles, out of reach of the compiler, which would compute sine and cosine again in every layer.

    Compilers for CPUs drop optimization barriers before they fuse, but fuse nothing into a conditional. A GPU would
    wait for the host to read its condition.
    """

    def branch(rotations: Rotations) -> Rotations:
        turned: Rotations = lax.cond(
            ragged.num_tokens >= 0, lambda: rotations, lambda: jax.tree.map(jnp.zeros_like, rotations)
        )
        return turned

    if not rotations:
        return ()
    turned: Rotations = lax.platform_dependent(rotations, cpu=branch, default=lax.optimization_barrier)
    return turned


class ScanStack(_Layers):
    """Layers that repeat are built once, with parameters that have a leading axis, and run by `lax.scan`.

    `all` has the layers of every period under the range of layers they stand for, as in "0:24:6".
    """

    def __init__(
        self, make_layer: MakeLayer, plans: tuple[LayerPlan, ...], cache: CachePlan, taps: tuple[int, ...]
    ) -> None:
        super().__init__(plans, cache, taps)
        self.segments = segments_of(plans)
        self.all = nnx.Dict(
            {
                _key(segment.layers(place)): stacked_layer(make_layer(plans[segment.start + place]), segment.repeats)
                for segment in self.segments
                for place in range(segment.period)
            }
        )

    def run(self, x: jax.Array, told: LayerInputs, cache: Cache) -> Carry:
        """See `_Layers`."""
        # XLA would move what is cheap to compute back into the loop, and compute it in every layer.
        told = lax.optimization_barrier(told._replace(shared=None))._replace(shared=told.shared)
        tapped: Tapped = tuple(jnp.zeros_like(x) for _ in self.taps)
        for segment in self.segments:
            x, cache, tapped = self._scan(segment, told, (x, cache, tapped))
        return x, cache, self._tapped(len(self.plans), x, tapped)

    def _scan(self, segment: Segment, told: LayerInputs, carried: Carry) -> Carry:
        """Run the layers of a segment."""
        ropes = ropes_of(self.plans)
        plans = self.plans[segment.start : segment.start + segment.period]
        own = [_layer_rotation(plan, ropes, told.rotations) for plan in plans]
        in_cache = [self._in_cache(segment, place, told.ragged) for place in range(segment.period)]
        in_entries = [self._in_entries(segment.layers(place), told.ragged) for place in range(segment.period)]
        groups = self.cache.groups[segment.start : segment.start + segment.period]
        # What a kernel reads for itself is not sliced.
        graphs, whole, sliced = [], [], []
        for place in range(segment.period):
            graph, *states = nnx.split(self.all[_key(segment.layers(place))], in_stack, ...)
            graphs.append(graph)
            whole.append(states[0])
            sliced.append(states[1])

        def body(carry: tuple[Carry, jax.Array], values: Any) -> tuple[tuple[Carry, jax.Array], None]:
            # Counted here: XLA would look up the number of each repeat in an array of them.
            (x, cache, tapped), repeat = carry
            for place, graph in enumerate(graphs):
                found = jax.tree.map(lambda array: LayerOf(array, repeat), whole[place])
                layer = nnx.merge(graph, found, values[place])
                context = LayerContext(own[place], *in_cache[place](repeat), told.states)
                context = context._replace(shared=told.shared, per_token=told.per_token, cross=told.cross)
                context = context._replace(entries=in_entries[place](repeat))
                if told.token_inputs is not None:
                    number = segment.start + repeat * segment.period + place
                    context = context._replace(token_input=told.token_inputs[number])
                if self.taps:
                    tapped = self._tapped(segment.start + repeat * segment.period + place, x, tapped)
                x, part = layer(x, cache.of(groups[place]), context)
                if plans[place].adds_images and told.added is not None:
                    x = x + told.added[segment.start + repeat * segment.period + place]
                cache = cache.updated(groups[place], part)
            return ((x, cache, tapped), repeat + 1), None

        (carried, _), _ = lax.scan(body, (carried, jnp.int32(0)), sliced, length=segment.repeats)
        return carried

    def _in_cache(
        self, segment: Segment, place: int, ragged: ByLayerPaging
    ) -> Callable[[jax.Array], tuple[RaggedBatch, jax.Array]]:
        """For each repeat of a segment, the batch with the page table of the layer at a place, and its own layer."""
        if self.cache.places == tuple(range(len(self.plans))):
            only = ragged[self.view(segment.start + place)]
            return lambda repeat: (only, segment.start + repeat * segment.period + place)
        layers = segment.layers(place)
        views = [self.view(layer) for layer in layers]
        own = jnp.array([self.cache.places[layer] for layer in layers], jnp.int32)
        # Equal plans keep equal states: layers of one place are of one group.
        if len(set(views)) == 1 or self.cache.groups[layers.start] is not None:
            return lambda repeat: (ragged[views[0]], own[repeat])
        # The repeats are longer than a slice of the cache.
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(ragged[view] for view in views))
        return lambda repeat: (jax.tree.map(lambda leaf: leaf[repeat], stacked), own[repeat])

    def _in_entries(self, layers: range, ragged: ByLayerPaging) -> Callable[[jax.Array], EntryPages | None]:
        """For each repeat of layers, the pages that have the entries of its layer, if it has some."""
        if not self.has_entries(layers.start):
            return lambda repeat: None
        tables = jnp.stack([ragged[self.entry_view(layer)].page_table for layer in layers])
        own = jnp.array([self.entry_place(layer) for layer in layers], jnp.int32)
        return lambda repeat: EntryPages(tables[repeat], own[repeat])


def _key(layers: range) -> str:
    return f"{layers.start}:{layers.stop}:{layers.step}"


def stacked_layer(layer: nnx.Module, repeats: int) -> nnx.Module:
    """A layer whose parameters are those of several, with a leading axis."""
    graph, parameters = nnx.split(layer)
    stacked: nnx.Module = nnx.merge(graph, jax.tree.map(lambda leaf: _stacked(leaf, repeats), parameters))
    return stacked


def in_stack(path: Any, variable: Any) -> bool:
    """Whether a kernel reads a layer's part of a stack of parameters for itself, see `LayerOf`."""
    return bool(variable.get_metadata()["layout"].in_stack)


def _stacked(leaf: jax.Array, layers: int) -> jax.Array:
    """The placeholder of all layers' parameters from that of one: a leading axis, which is not split."""
    one = leaf.sharding
    whole = NamedSharding(one.mesh, PartitionSpec(None, *one.spec)) if isinstance(one, NamedSharding) else None
    return placeholder((layers, *leaf.shape), leaf.dtype, whole)


Stack = LoopStack | ScanStack


def make_stack(
    kind: str, make_layer: MakeLayer, plans: tuple[LayerPlan, ...], cache: CachePlan, taps: tuple[int, ...] = ()
) -> Stack:
    """Build the stack called `kind`, 'loop' or 'scan', which can give the inputs of layers `taps`, too.

    Raises `ModelError` for another kind.
    """
    kinds: dict[str, type[LoopStack | ScanStack]] = {"loop": LoopStack, "scan": ScanStack}
    if kind not in kinds:
        raise ModelError(f"unknown layer stack {kind!r} (known: {', '.join(kinds)})")
    return kinds[kind](make_layer, plans, cache, taps)
