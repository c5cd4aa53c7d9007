"""What images and sound take on a device: the pool of their rows, and the programs that encode them."""

from collections.abc import Callable, Sequence

import msgspec

from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.models.towers.sound import SoundPlan
from jaxllm.planning.links import network_of
from jaxllm.planning.memory import CompiledProgram, compile_image
from jaxllm.planning.memory import compile_sound as compile_window
from jaxllm.planning.target import TargetDevices


class ImageProgram(msgspec.Struct, frozen=True):
    """The program for crops of at most so many `patches`, which become up to `rows` tokens.

    `compile_seconds` on this machine and `temporaries` in bytes are None where it was not compiled. `seconds` is XLA's
    own estimate of a crop's time on the chip; None where it has none.
    """

    patches: int
    rows: int
    compile_seconds: float | None = None
    temporaries: int | None = None
    seconds: float | None = None


class SoundProgram(msgspec.Struct, frozen=True):
    """The program for windows of so many `frames`, which become up to `rows` tokens, or are heard by cross attention.

    The others are those of `ImageProgram`.
    """

    frames: int
    rows: int
    compile_seconds: float
    temporaries: int
    seconds: float | None = None


def compile_sound(
    resolved: ResolvedConfig, target: TargetDevices, say: Callable[[str], None]
) -> CompiledProgram | None:
    """The compiled program for sound, where the model hears. Raises `CapacityError` when it does not fit the device."""
    if sound_of(resolved) is None:
        return None
    say("compiling a window of sound")
    return compile_window(resolved, network_of(target.chip, resolved.mesh))


def sound_of(resolved: ResolvedConfig) -> SoundPlan | None:
    """What hears in the model, if requests may have sound."""
    return resolved.model.sound if resolved.sees_images or resolved.model.has_cross_attention else None


def sound_program(resolved: ResolvedConfig, compiled: CompiledProgram | None) -> SoundProgram | None:
    """What a report says of it."""
    plan = sound_of(resolved)
    if plan is None or compiled is None:
        return None
    seconds = None if compiled.cost is None else compiled.cost.seconds
    return SoundProgram(plan.num_frames, plan.most_rows, compiled.seconds, compiled.temporary_bytes, seconds)


def compile_images(
    resolved: ResolvedConfig, target: TargetDevices, *, all_sizes: bool, say: Callable[[str], None]
) -> dict[int, CompiledProgram]:
    """The compiled programs for images, by their patches: that of the largest crops, or all.

    Raises `CapacityError` when one does not fit the device.
    """
    sizes = image_sizes(resolved)
    compiled = {}
    for patches in reversed(sizes if all_sizes else sizes[-1:]):
        say(f"compiling an image of {patches:,} patches")
        compiled[patches] = compile_image(resolved, patches, network_of(target.chip, resolved.mesh))
    return compiled


def image_sizes(resolved: ResolvedConfig) -> Sequence[int]:
    """The sizes of crops, in patches, that have a program each; none where the model sees none."""
    tower = resolved.model.tower
    return tower.sizes if resolved.sees_images and tower is not None else ()


def image_programs(resolved: ResolvedConfig, compiled: dict[int, CompiledProgram]) -> list[ImageProgram]:
    """What a report says of each."""
    tower, found = resolved.model.tower, []
    for patches in image_sizes(resolved):
        assert tower is not None
        rows, program = tower.rows_of(patches), compiled.get(patches)
        if program is None:
            found.append(ImageProgram(patches, rows))
            continue
        seconds = None if program.cost is None else program.cost.seconds
        found.append(ImageProgram(patches, rows, program.seconds, program.temporary_bytes, seconds))
    return found
