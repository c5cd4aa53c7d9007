"""Which devices `--device` and `--topology` mean, as far as no compiler is needed."""

import sys

import jax
import pytest

from jaxllm.errors import ConfigError
from jaxllm.planning import target
from jaxllm.planning.target import find_target, prepare


@pytest.mark.parametrize("device", [None, "cpu"])
def test_this_machine(device: str | None) -> None:
    found = find_target(device, None, 1)
    assert found.devices == tuple(jax.local_devices())
    assert (found.absent, found.chip, found.name) == (False, None, "this machine (cpu)")


@pytest.mark.parametrize(
    ("device", "topology", "message"),
    [
        (
            "v6",
            None,
            r"--device v6: unknown; did you mean .* \(known: cpu, v4, v5e, v5p, v6e, tpu7x, h100, h200, b200\)",
        ),
        ("", None, "unknown"),
        (
            "h100",
            None,
            r"this machine has none, and only TPUs can be planned without one \(v4, v5e, v5p, v6e, tpu7x\)",
        ),
        ("tpu", None, "this machine has none"),
        ("cpu", "2x2", "--topology 2x2: requires a TPU as --device"),
        ("v6e", "", "expected the number of chips along each axis, such as 2x2"),
        ("v6e", "8", "expected the number of chips along each axis, such as 2x2"),
        ("v5p", "2x2x1x1", "expected the number of chips along each axis, such as 2x2x1"),
        ("v6e", "2x-2", "expected the number of chips along each axis"),
        ("v6e", "0x2", "expected the number of chips along each axis"),
    ],
)
def test_devices_that_there_are_not(device: str, topology: str | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        find_target(device, topology, 1)


def test_libtpu_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "libtpu", None)
    with pytest.raises(ConfigError, match=r"needs its compiler, libtpu: pip install 'jax\[tpu\]'"):
        find_target("v6e", None, 1)


def test_the_smallest_usual_topology(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def describe(name: str, options: dict[str, object]) -> list[object]:
        asked.append((name, options.get("chips_per_host_bounds")))
        return [object()] * 8

    monkeypatch.setattr(target, "_describe", describe)
    for device, count in (("v6e", 1), ("v6e", 2), ("v5e", 8), ("v5p", 1)):
        find_target(device, None, count)
    assert asked == [("v6e:1x1", (1, 1, 1)), ("v6e:2x2", (2, 2, 1)), ("v5e:2x4", (2, 4, 1)), ("v5p:2x2x1", None)]
    find_target("v6e", "1x2", 2)
    find_target("v5p", "1x2x1", 2)
    assert asked[4:] == [("v6e:1x2", (1, 2, 1)), ("v5p:1x2x1", (1, 2, 1))], "a part of a host"
    with pytest.raises(ConfigError, match="has 8 devices, but the engine needs 16"):
        find_target("v6e", "2x4", 16)


def test_the_environment_of_absent_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {"TPU_WORKER_HOSTNAMES": "mine"}
    monkeypatch.setattr("os.environ", environment)
    prepare(None)
    prepare("h100")
    assert environment == {"TPU_WORKER_HOSTNAMES": "mine"}
    prepare("v6e")
    assert environment["TPU_WORKER_HOSTNAMES"] == "mine"
    assert environment["JAX_PLATFORMS"] == "cpu"
