"""Which devices each of several engines sees."""

from pathlib import Path
from typing import Any

import pytest

from jaxllm.config import ParallelOptions
from jaxllm.errors import ConfigError
from jaxllm.serving.ipc.client.placement import visible_devices


def files(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


def test_tpu_chips(tmp_path: Path) -> None:
    devices = files(tmp_path, *(f"accel{number}" for number in range(8)))
    options = ParallelOptions(data_parallel_size=2, tensor_parallel_size=4)
    first, second = (visible_devices(number, options, {}, devices) for number in (0, 1))
    assert first["TPU_VISIBLE_CHIPS"] == "0,1,2,3"
    assert second["TPU_VISIBLE_CHIPS"] == "4,5,6,7"
    assert first["TPU_CHIPS_PER_PROCESS_BOUNDS"] == "2,2,1"
    assert first["TPU_PROCESS_BOUNDS"] == "1,1,1"
    assert first["TPU_MESH_CONTROLLER_PORT"] != second["TPU_MESH_CONTROLLER_PORT"]
    # Each gets an equal part where nobody says how many it needs.
    options = ParallelOptions(data_parallel_size=4)
    assert visible_devices(3, options, {}, devices)["TPU_VISIBLE_CHIPS"] == "6,7"


def on_bus(folder: Path, *ids: tuple[str, str]) -> Path:
    """The kernel's files for devices with these vendors and numbers."""
    for number, (vendor, device) in enumerate(ids):
        place = folder / f"0000:00:{number:02x}.0"
        place.mkdir(parents=True)
        (place / "vendor").write_text(f"{vendor}\n")
        (place / "device").write_text(f"{device}\n")
    return folder


def test_chips_of_two_devices(tmp_path: Path) -> None:
    """A TPU7x: matrices are split over devices, processes get chips."""
    devices = files(tmp_path / "dev", *(f"vfio/{number}" for number in range(4)))
    network, tpu7x, v6e = ("0x1ae0", "0x0042"), ("0x1ae0", "0x0076"), ("0x1ae0", "0x006f")
    bus = on_bus(tmp_path / "tpu7x", ("0x8086", "0x0076"), network, *(tpu7x,) * 4)

    def chips(number: int, bus: Path, **options: int) -> str:
        parallel = ParallelOptions(**options)  # type: ignore[arg-type]
        return visible_devices(number, parallel, {}, devices, bus)["TPU_VISIBLE_CHIPS"]

    each = [chips(number, bus, data_parallel_size=4, tensor_parallel_size=2) for number in range(4)]
    assert each == ["0", "1", "2", "3"]
    assert chips(1, bus, data_parallel_size=2, tensor_parallel_size=4) == "2,3"
    assert chips(1, bus, data_parallel_size=2) == "2,3"
    assert chips(1, bus, data_parallel_size=2, tensor_parallel_size=2, pipeline_parallel_size=2) == "2,3"
    # Half of a chip cannot be given to a process, so that the other half is idle.
    assert chips(3, bus, data_parallel_size=4, tensor_parallel_size=1) == "3"
    with pytest.raises(ConfigError, match="=4 each exceed the 4 TPU chips, with 2 devices each, of this machine"):
        chips(0, bus, data_parallel_size=4, tensor_parallel_size=4)
    with pytest.raises(ConfigError, match="tensor_parallel_size=2 each exceed the 4 TPU chips of this machine"):
        chips(0, on_bus(tmp_path / "v6e", *(v6e,) * 4), data_parallel_size=4, tensor_parallel_size=2)


def test_gpus(tmp_path: Path) -> None:
    devices = files(tmp_path, "nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm")
    options = ParallelOptions(data_parallel_size=2)
    assert visible_devices(1, options, {}, devices) == {"CUDA_VISIBLE_DEVICES": "1"}
    # Those that the operator has chosen.
    visible = {"CUDA_VISIBLE_DEVICES": "7,GPU-5b7a"}
    assert visible_devices(1, options, visible, devices) == {"CUDA_VISIBLE_DEVICES": "GPU-5b7a"}


@pytest.mark.parametrize(
    ("options", "variables"),
    [
        ({}, {}),
        ({"data_parallel_size": 2, "device": "cpu"}, {}),
        ({"data_parallel_size": 2}, {"JAX_PLATFORMS": "cpu"}),
    ],
)
def test_nothing_to_choose(tmp_path: Path, options: dict[str, Any], variables: dict[str, str]) -> None:
    assert visible_devices(0, ParallelOptions(**options), variables, files(tmp_path, "accel0")) == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"data_parallel_size": 4}, "data_parallel_size=4: 1 each exceed the 3 TPU chips of this machine"),
        ({"data_parallel_size": 2, "tensor_parallel_size": 2}, "tensor_parallel_size=2 each exceed the 3 TPU"),
        (
            {"data_parallel_size": 2, "tensor_parallel_size": 1, "pipeline_parallel_size": 2},
            "tensor_parallel_size=1 in 2 stages each exceed the 3 TPU",
        ),
    ],
)
def test_too_few(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        visible_devices(0, ParallelOptions(**options), {}, files(tmp_path, "vfio/0", "vfio/1", "vfio/2", "vfio/vfio"))


def test_chips_that_do_not_lie_together(tmp_path: Path) -> None:
    devices = files(tmp_path, *(f"accel{number}" for number in range(6)))
    with pytest.raises(ConfigError, match="3 TPU chips for each engine are not supported; supported: 1, 2, 4, 8"):
        visible_devices(0, ParallelOptions(data_parallel_size=2), {}, devices)


def test_engines_that_are_added_later(tmp_path: Path) -> None:
    devices = files(tmp_path, *(f"accel{number}" for number in range(4)))
    options = ParallelOptions(data_parallel_size=2, tensor_parallel_size=1)
    assert visible_devices(3, options, {}, devices)["TPU_VISIBLE_CHIPS"] == "3"
    with pytest.raises(ConfigError, match="no TPU chips are left for engine 4: 2 with 1 each were started on 4"):
        visible_devices(4, options, {}, devices)
    with pytest.raises(ConfigError, match="no TPU chips are left for engine 1: 1 with 4 each were started on 4"):
        visible_devices(1, ParallelOptions(data_parallel_size=1, tensor_parallel_size=1), {}, devices)
    assert visible_devices(1, ParallelOptions(data_parallel_size=1), {"JAX_PLATFORMS": "cpu"}, devices) == {}
