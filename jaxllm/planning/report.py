"""Whether an engine fits its devices, what it takes of their memory, and how fast it may be."""

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from jaxllm.errors import CapacityError
from jaxllm.executor.compile.buckets import Bucket, Buckets
from jaxllm.executor.compile.executables import without_compilation_cache
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.models.kv_shape import latent_sizes
from jaxllm.planning.advice import advise
from jaxllm.planning.images import (
    ImageProgram,
    SoundProgram,
    compile_images,
    compile_sound,
    image_programs,
    sound_program,
)
from jaxllm.planning.links import network_of
from jaxllm.planning.memory import CompiledProgram, MemoryUse, compile_step, measure
from jaxllm.planning.roofline import CONTEXT, DraftsEstimate, StepEstimate, estimate, estimate_drafts
from jaxllm.planning.schedule import Collective
from jaxllm.planning.staged import check_fits, combine_stages, fullest, sized
from jaxllm.planning.target import TargetDevices

DRAFTING_REQUESTS = (1, 8, 64)
"""Requests of the steps with drafts that a report has."""


class DeviceMemory(msgspec.Struct, frozen=True):
    """Bytes on each device. `total` is what it has, `free` what is left of it; `kv_cache` is 0 where nothing fits.

    `recurrent` are states of recurrent layers, of running requests and in snapshots, and inputs of drafts.
    `temporaries` and `code` are those of the largest step, or of the largest image if it needs more.
    """

    total: int
    weights: int
    kv_cache: int
    state: int
    temporaries: int
    code: int
    free: int
    recurrent: int = 0


class CompilerEstimate(msgspec.Struct, frozen=True):
    """The time of a step's compiled program on the chip, see `jaxllm.planning.schedule`.

    `seconds` is the sum of `operations`, by XLA's own estimates, of what the device waits for `links` and for `copies`
    between its memories, and of `attention`, which is that of `StepEstimate`: XLA has no estimate for kernels. Other
    kernels are not counted.
    """

    seconds: float
    operations: float
    links: float
    copies: float
    attention: float
    collectives: list[Collective]


class Step(msgspec.Struct, frozen=True):
    """One step shape; `compile_seconds` on this machine, None where it was not compiled, `estimate` on the chip.

    `compiler` is the compiler's own estimate, None where it has none, and of a step through several stages.
    """

    tokens: int
    requests: int
    compile_seconds: float | None
    estimate: StepEstimate | None
    compiler: CompilerEstimate | None = None


class StageReport(msgspec.Struct, frozen=True):
    """Layers `start` to `stop` of an engine in stages, on `num_devices`; steps as in `Report`, but of these layers."""

    start: int
    stop: int
    num_devices: int
    memory: DeviceMemory
    steps: list[Step]


class Tiers(msgspec.Struct, frozen=True):
    """Copies of KV pages: bytes of a token, and the tokens that there is room for in host memory and in files.

    A copy pays where it is faster than computing: above `break_even` bytes per second, where the chip is known.
    """

    token_bytes: int
    host_tokens: int
    disk_tokens: int
    break_even: float | None = None


class Report(msgspec.Struct, frozen=True):
    """Everything `jaxllm plan` says. `reason` and `advice`: why it does not fit, and what would.

    With `stages`, `memory` is that of the one whose KV cache holds the least, and `steps` go through all of them.
    """

    model: str
    device: str
    num_devices: int
    dtype: str
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    attention_backend: str
    fits: bool
    reason: str | None
    advice: list[str]
    memory: DeviceMemory
    kv_tokens: int
    max_concurrency: float
    decode_context: int
    steps: list[Step]
    state_snapshots: int = 0
    kv_cache_dtype: str = ""
    stages: list[StageReport] = []
    drafts: list[DraftsEstimate] = []
    """With speculative decoding, steps of few requests and of many; empty where the chip's figures are not known."""
    images: list[ImageProgram] = []
    """The programs that encode images, if the model sees some."""
    media_tokens: int = 0
    """Tokens of images, or sound, that the devices hold."""
    sound: SoundProgram | None = None
    """The program that encodes sound, if the model hears some and it was compiled."""
    tiers: Tiers | None = None
    """None without `kv_offloading_size`."""


@without_compilation_cache()
def make_report(
    resolved: ResolvedConfig,
    target: TargetDevices,
    *,
    all_buckets: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> Report:
    """Compile the largest and the smallest step, or all, and work out the rest. `say` is told what takes its time."""
    memories = [measure(part, target) for part in resolved.stage_configs]
    buckets = Buckets(resolved.max_num_batched_tokens, resolved.max_num_seqs, resolved.bucket_growth)
    wanted = buckets.all if all_buckets else (buckets.all[0], buckets.largest)
    compiled: list[dict[Bucket, CompiledProgram]] = [{} for _ in memories]
    images: dict[int, CompiledProgram] = {}
    sound: CompiledProgram | None = None
    reason = None
    try:
        # The compiler would say so too, after a while.
        check_fits(memories)
        for part, found in zip(resolved.stage_configs, compiled, strict=True):
            found.update(_compile(part, target, sorted(set(wanted), reverse=True), say))
        # The first stage sees and hears.
        images.update(compile_images(resolved.stage_configs[0], target, all_sizes=all_buckets, say=say))
        sound = compile_sound(resolved.stage_configs[0], target, say)
        beside = _largest_of_stages([found[buckets.largest] for found in compiled], images, sound)
        pairs = zip(memories, beside, strict=True)
        resolved, pages = sized(resolved, [max(memory.cache_budget(program), 0) for memory, program in pairs])
    except CapacityError as error:
        pages, reason = 0, str(error)
    largest = _largest_of_stages([found.get(buckets.largest) for found in compiled], images, sound)
    config, parts = resolved.config, resolved.stage_configs
    memory_parts = [
        _parts(memory, step, pages, part.num_state_slots)
        for memory, step, part in zip(memories, largest, parts, strict=True)
    ]
    steps = [
        [_step(part, target, memory, bucket, found.get(bucket)) for bucket in buckets.all]
        for part, memory, found in zip(parts, memories, compiled, strict=True)
    ]
    full = fullest(memories, largest)
    together = [_together(resolved, target, bucket, each) for bucket, *each in zip(buckets.all, *steps, strict=True)]
    kv_tokens = resolved.cache_groups.tokens_held(max(pages - 1, 0), resolved.max_model_len)
    return Report(
        model=config.model.model,
        device=target.name,
        num_devices=resolved.num_devices * resolved.num_stages,
        dtype=resolved.dtype,
        kv_cache_dtype=resolved.kv_dtype,
        max_model_len=resolved.max_model_len,
        max_num_seqs=resolved.max_num_seqs,
        max_num_batched_tokens=resolved.max_num_batched_tokens,
        attention_backend=resolved.forward.attention,
        fits=reason is None,
        reason=reason,
        advice=[] if reason is None else advise(parts[full], target, memories[full], largest[full]),
        memory=memory_parts[full],
        kv_tokens=kv_tokens,
        max_concurrency=kv_tokens / resolved.max_model_len,
        decode_context=min(CONTEXT, resolved.max_model_len),
        steps=together,
        state_snapshots=resolved.num_snapshots,
        stages=[
            StageReport(part.stage.start, part.stage.stop, part.num_devices, memory, own)
            for part, memory, own in zip(parts, memory_parts, steps, strict=True)
            if part.stage is not None
        ],
        drafts=_drafts(resolved, target, memories[full]),
        images=image_programs(resolved, images),
        media_tokens=resolved.media_rows,
        sound=sound_program(resolved, sound),
        # Latents are whole on each device.
        tiers=_tiers(
            resolved,
            memories[full].page * (1 if latent_sizes(resolved.model) else resolved.num_devices),
            together[-1],
        ),
    )


def _tiers(resolved: ResolvedConfig, page_bytes: int, largest: Step) -> Tiers | None:
    """Room for copies; a page has `page_bytes` on all devices together."""
    options, groups = resolved.config.cache, resolved.cache_groups
    if not options.kv_offloading_size:
        return None
    sizes = (options.kv_offloading_size, options.kv_offloading_disk_size if options.kv_offloading_path else 0.0)
    host, disk = (groups.tokens_held(int(gib * 2**30) // page_bytes, resolved.max_model_len) for gib in sizes)
    token_bytes = page_bytes * groups.num_tables // resolved.page_size
    guess = largest.estimate
    return Tiers(token_bytes, host, disk, None if guess is None else token_bytes * largest.tokens / guess.seconds)


def _largest_of_stages(
    steps: Sequence[CompiledProgram | None], images: Mapping[int, CompiledProgram], sound: CompiledProgram | None
) -> list[CompiledProgram | None]:
    """Of each stage. The first one encodes images and sound."""
    return [_largest(steps[0], images, sound), *steps[1:]]


def _largest(
    step: CompiledProgram | None, images: Mapping[int, CompiledProgram], sound: CompiledProgram | None
) -> CompiledProgram | None:
    """What needs the most memory, as an engine takes it: one follows the other."""
    if step is None:
        return None
    return max([step, *images.values(), *([] if sound is None else [sound])], key=lambda program: program.bytes)


def _drafts(resolved: ResolvedConfig, target: TargetDevices, memory: MemoryUse) -> list[DraftsEstimate]:
    """Steps with as many drafts as a request may have, as far as they fit a step."""
    each = resolved.max_drafts
    if target.chip is None or not each or resolved.num_stages > 1:
        return []
    most = min(resolved.max_num_seqs, resolved.max_num_batched_tokens // (1 + each))
    numbers = [number for number in DRAFTING_REQUESTS if number <= most]
    return [estimate_drafts(resolved, target.chip, memory.weights, memory.page, number, each) for number in numbers]


def _compile(
    resolved: ResolvedConfig, target: TargetDevices, buckets: list[Bucket], say: Callable[[str], None]
) -> dict[Bucket, CompiledProgram]:
    """Compile as the engine does. Raises `CapacityError` when one does not fit the device."""

    def one(bucket: Bucket) -> CompiledProgram:
        say(f"compiling a step of {bucket}")
        return compile_step(resolved, bucket, network_of(target.chip, resolved.mesh))

    workers = resolved.config.compile.compile_workers or os.cpu_count() or 1
    with ThreadPoolExecutor(workers, thread_name_prefix="compile") as pool:
        return dict(zip(buckets, pool.map(one, buckets), strict=True))


def _parts(memory: MemoryUse, largest: CompiledProgram | None, pages: int, slots: int) -> DeviceMemory:
    temporaries, code = (0, 0) if largest is None else (largest.temporary_bytes, largest.code_bytes)
    cache, recurrent = pages * memory.page, slots * memory.slot + memory.drafts
    taken = memory.weights + memory.state + temporaries + code + cache + recurrent
    free = memory.limit - taken
    return DeviceMemory(memory.limit, memory.weights, cache, memory.state, temporaries, code, free, recurrent)


def _step(
    resolved: ResolvedConfig, target: TargetDevices, memory: MemoryUse, bucket: Bucket, compiled: CompiledProgram | None
) -> Step:
    guess = estimate(resolved, target.chip, memory.weights, memory.page, bucket) if target.chip else None
    if compiled is None:
        return Step(bucket.tokens, bucket.rows, None, guess)
    return Step(bucket.tokens, bucket.rows, compiled.seconds, guess, compiler_estimate(compiled, guess))


def _together(resolved: ResolvedConfig, target: TargetDevices, bucket: Bucket, stages: Sequence[Step]) -> Step:
    """A step of all stages; the only one, where there is one."""
    if not resolved.stages:
        return stages[0]
    times = [step.compile_seconds for step in stages if step.compile_seconds is not None]
    found = combine_stages(resolved, target.chip, bucket, [step.estimate for step in stages])
    return Step(bucket.tokens, bucket.rows, sum(times) if times else None, found)


def compiler_estimate(compiled: CompiledProgram, guess: StepEstimate | None) -> CompilerEstimate | None:
    """Estimate for a compiled step, whose attention takes what the roofline says."""
    cost = compiled.cost
    if cost is None or guess is None:
        return None
    return CompilerEstimate(
        seconds=cost.seconds + guess.attention,
        operations=cost.computing,
        links=cost.exposed,
        copies=cost.copying,
        attention=guess.attention,
        collectives=list(cost.collectives),
    )
