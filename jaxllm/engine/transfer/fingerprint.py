"""Which engines may exchange pages: those whose pages mean the same, however they are divided among devices."""

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jaxllm.engine.offloading.host_tier import PageMover
from jaxllm.engine.offloading.layout import digest_of, weights_digest
from jaxllm.engine.transfer.wire import VERSION, Hello, PageForm
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.kv.tiers.host_pool import Bytes
from jaxllm.version import __version__


@dataclass(frozen=True)
class Fingerprint:
    """A digest of all that pages depend on, and the form of this engine's."""

    digest: bytes
    form: PageForm

    @property
    def hello(self) -> Hello:
        """The first message to another engine."""
        return Hello(VERSION, self.digest, self.form)

    def problem(self, hello: Hello) -> str | None:
        """Why pages are not for an engine that has said this; None if they are."""
        if hello.version != VERSION:
            return f"the protocol has version {VERSION} here, not {hello.version}; run the same jaxllm"
        if hello.fingerprint != self.digest:
            return (
                "fingerprints differ: both engines need the same weights, dtype, kv_cache_dtype, block_size, attention "
                "kernel and version of jaxllm"
            )
        return form_problem(self.form, hello.form)


def form_problem(one: PageForm, other: PageForm) -> str | None:
    """Why pages of one form cannot become those of another; None if they can."""
    if one == other:
        return None
    if one.devices != other.devices:
        return (
            f"pages or states of this model are laid out for {other.devices or 'any number of'} devices there, and for "
            f"{one.devices or 'any number'} here; use the same tensor_parallel_size"
        )
    problem = f"pages of {other.shape} cannot become pages of {one.shape}; use the same tensor_parallel_size"
    for form in (one, other):
        axis = form.heads_axis
        if not 0 <= axis < len(form.shape) or form.heads < 1 or form.repeats < 1:
            return problem
        if form.shape[axis] % (form.heads * form.repeats):
            return problem
    alike = [
        (form.dtype, _others(form.shape, form.heads_axis), form.heads, form.state_bytes, form.devices)
        for form in (one, other)
    ]
    rows = [form.shape[form.heads_axis] // (form.heads * form.repeats) for form in (one, other)]
    return None if alike[0] == alike[1] and rows[0] == rows[1] else problem


def _others(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    """The sizes of all axes but one, which is marked."""
    return (*shape[:axis], 0, *shape[axis + 1 :])


def form_bytes(form: PageForm) -> int:
    """Bytes of a page."""
    return int(np.prod(form.shape, dtype=np.int64)) * item_bytes(form)


def item_bytes(form: PageForm) -> int:
    """Bytes of a number in a page."""
    return np.dtype(f"V{int(form.dtype.rpartition(':')[2])}").itemsize


def converted(data: Bytes, given: PageForm, wanted: PageForm) -> Bytes:
    """A page of one form as one of another, uint8; see `form_problem`."""
    if given == wanted:
        return data
    axis, size = given.heads_axis, item_bytes(given)
    before, after = given.shape[:axis], given.shape[axis + 1 :]
    rows = given.shape[axis] // (given.heads * given.repeats)
    split = data.reshape(*before, given.heads, given.repeats, rows, *after, size)
    once = split[(slice(None),) * (axis + 1) + (slice(0, 1),)]
    repeated = np.repeat(once, wanted.repeats, axis=axis + 1)
    return np.ascontiguousarray(repeated).reshape(-1)


def fingerprint_of(resolved: ResolvedConfig, mover: PageMover, kept: Path | None = None) -> Fingerprint:
    """The fingerprint of an engine. All weights are read, see `weights_digest`. Raises `OSError` and `ModelError`."""
    form = form_of(resolved, mover)
    options = resolved.config.model
    cached = resolved.forward.kv_cache
    known: dict[str, Any] = {
        "protocol": VERSION,
        "jaxllm": __version__,
        "model": resolved.model.architecture,
        "weights": weights_digest(resolved, kept),
        "model_config": digest_of(dataclasses.asdict(resolved.model)),
        "quantization": options.quantization,
        "dtype": resolved.dtype,
        "kv_cache_dtype": resolved.kv_dtype,
        "kv_cache": None if cached is None else digest_of(dataclasses.asdict(cached)),
        "block_size": resolved.page_size,
        "windows": list(resolved.cache_groups.windows),
        "attention": resolved.forward.attention,
        "platform": resolved.platform,
    }
    return Fingerprint(hashlib.sha256(json.dumps(known, sort_keys=True, default=str).encode()).digest(), form)


def form_of(resolved: ResolvedConfig, mover: PageMover) -> PageForm:
    """How an engine keeps a page."""
    page, devices = mover.page, resolved.num_devices
    (heads, _), *others = dict.fromkeys(resolved.model.kv_heads) or {(1, 1): None}
    name = f"{np.dtype(page.dtype).name}:{np.dtype(page.dtype).itemsize}"
    shape = tuple(page.shape)
    # Places with heads of several sizes, with those of an index, and some states, are laid out for each device.
    orders_states = any(plan.orders_by_device for plan in resolved.model.recurrences)
    is_laid_out = bool(others or resolved.model.index_heads or orders_states)
    repeats = max(1, devices // heads)
    fits = resolved.model.latent is None and not is_laid_out and len(shape) > 2 and not shape[2] % (heads * repeats)
    return PageForm(
        name,
        shape,
        2 if fits else -1,
        heads if fits else 0,
        repeats if fits else 0,
        mover.state_bytes,
        devices if is_laid_out else 0,
    )
