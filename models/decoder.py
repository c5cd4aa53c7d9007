"""The layers of a decoder, with their caches: what a language model has between its input and its output."""

from dataclasses import replace
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from flax import nnx

from jaxllm.models.attention_plan import RopeConfig
from jaxllm.models.batch import Batch, LayerPaging, by_table, cross_batch
from jaxllm.models.cache import Cache
from jaxllm.models.config import ModelConfig
from jaxllm.models.families import registry
from jaxllm.models.kv_shape import CacheLayout
from jaxllm.models.layers.adapter_slots import add_adapter_slots
from jaxllm.models.layers.learned_frequencies import LearnedFrequencies
from jaxllm.models.layers.rope import frequencies, rotation
from jaxllm.models.options import ForwardOptions
from jaxllm.models.plan import LayerPlan
from jaxllm.models.sharding import model_parallel, split_kv_heads
from jaxllm.models.stack import LayerInputs, make_stack, ropes_of
from jaxllm.pallas_kernels.paged_attention import Heads, RaggedBatch, get_backend, prepare, prepare_chunked

if TYPE_CHECKING:
    from jaxllm.models.families.family import LayerFactory
    from jaxllm.pallas_kernels.linear.weight_type import WeightType


class Decoder(nnx.Module):
    """Layers, and where each keeps what outlives a step (`cache`). Built without memory."""

    def __init__(
        self,
        config: ModelConfig,
        options: ForwardOptions,
        dtype: jnp.dtype,
        make_layer: "LayerFactory | None" = None,
        taps: tuple[int, ...] = (),
    ) -> None:
        """`make_layer` is the architecture's by default; `taps` see `make_stack`."""
        self.config, self.options = config, options
        make_layer = make_layer or registry.lookup(config.architecture).make_layer
        # A window that no request can outgrow hides nothing, and full attention is the cheaper code.
        plans = config.within(options.max_model_len)
        self.layout = CacheLayout.of(config, options, dtype.name)
        self.cache = self.layout.plan(plans, by_window=options.cache_groups and not options.one_layer_cache)

        def make_one(plan: LayerPlan) -> nnx.Module:
            layer = make_layer(config, plan, options, dtype)
            set_weight_types(layer, plan.weight_types)
            return layer if options.adapters is None else add_adapter_slots(layer, options.adapters)

        self.layers = make_stack(options.stack, make_one, plans.layers, self.cache, taps)
        learned = next((rope for rope in ropes_of(config.layers) if rope.learns), None)
        self.rotary = None if learned is None else _make_frequencies(config, learned, options)
        """Factors on frequencies, which all layers share."""

    def layer_inputs(self, batch: Batch, cache: Cache) -> LayerInputs:
        """The context of a step for the layers."""
        config = self.config
        positions = batch.ragged.positions if batch.rotary_positions is None else batch.rotary_positions
        learned = None if self.rotary is None else self.rotary.factors
        most = self.options.max_model_len
        rotations = tuple(
            rotation(rope, config.head_size, most, positions, learned if rope.learns else None)
            for rope in ropes_of(config.layers)
        )
        per_token = batch.context.over_all_rows()
        if config.routes_by_token or config.looks_up_grams:
            per_token = per_token._replace(token_ids=batch.token_ids)
        told = LayerInputs(rotations, self._views(batch.ragged, cache), batch.state_rows, per_token=per_token)
        return told if batch.cross_pages is None else told._replace(cross=self._cross(batch, cache))

    def _cross(self, batch: Batch, cache: Cache) -> RaggedBatch:
        """The batch as cross attention has it."""
        sound, pages, implementation = self.config.sound, cache.pages[0], self.options.attention
        assert sound is not None
        assert batch.cross_pages is not None
        stored = self.layout.stored_size(self.config.head_size)
        page_size = get_backend(implementation).page_size(pages.shape, stored)
        cross = cross_batch(batch.ragged, batch.cross_pages, sound.num_keys, page_size)
        return prepare(implementation, cross, replace(self._heads(self.layers.view(0), pages), most_short=1))

    def _views(self, ragged: RaggedBatch, cache: Cache) -> dict[LayerPaging, RaggedBatch]:
        """The batch as each kind of layer sees it."""
        tables, views = by_table(ragged, self.cache.num_tables), {}
        for view in self.layers.views():
            views[view] = view.of(tables[view.table])
            implementation = self.options.attention
            if self.config.compressed:
                continue
            if cache.pages and self.config.latent is not None:
                # Few models have it: starts of others are faster without.
                from jaxllm.pallas_kernels.latent_attention import prepare_latent

                num_heads = (view.num_heads or self.config.num_heads) // model_parallel(self.options.mesh)
                most_short = 1 + self.options.most_drafts
                views[view] = prepare_latent(implementation, views[view], num_heads, most_short)
            elif cache.pages:
                heads = self._heads(view, cache.pages[0])
                if view.chunk:
                    size = self.layout.stored_size(self.layout.widest(self.config)[1])
                    views[view] = prepare_chunked(implementation, views[view], view.chunk, cache.pages[0], size)
                views[view] = prepare(implementation, views[view], heads)
        return views

    def _heads(self, view: LayerPaging, pages: jax.Array) -> Heads:
        """Attention of the layers on one device, as a view has it."""
        config, devices = self.config, model_parallel(self.options.mesh)
        return Heads(
            (view.num_heads or config.num_heads) // devices,
            split_kv_heads(view.num_kv_heads or config.num_kv_heads, devices) // devices,
            view.head_size or config.head_size,
            pages.dtype.name,
            frozenset(
                0 if plan.attention.is_chunked else plan.attention.window
                for plan in self.layers.plans
                if plan.recurrence is None
            ),
            1 + self.options.most_drafts,
        )


def _make_frequencies(config: ModelConfig, rope: RopeConfig, options: ForwardOptions) -> LearnedFrequencies:
    plain, _ = frequencies(rope, config.head_size, options.max_model_len)
    return LearnedFrequencies(len(plain), options)


# Few models are quantized: starts of others are faster without the import.


def set_weight_types(module: nnx.Module, types: "tuple[tuple[str, WeightType], ...]") -> None:
    """Give matrices of a module the types that they have in a quantized checkpoint, by their names."""
    if types:
        # Few models have these: starts of others are faster without the import.
        from jaxllm.models.layers.weight_types import set_weight_types

        set_weight_types(module, types)
