"""How long arrays are on the way between the chips of a TPU slice, by the bytes on each link and the hops."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from jax.sharding import Mesh

from jaxllm.pallas_kernels.chips import Chip

HOP_SECONDS = 1e-6
"""The time of a hop to a neighbour besides the bytes: "How to Scale Your Model", chapter 3, "typically around 1us"."""

Position = tuple[int, ...]
Link = tuple[Position, Position]
"""From a chip to its neighbour."""


def gather_seconds(chip: Chip, devices: int, size: int) -> float:
    """Until all devices have all parts of an array of `size` bytes, around a ring in both directions at once.

    Bound by the bytes on a link or, if they are few, by the hops halfway around (chapter 3 of "How to Scale Your
    Model"). Adding up what each device gets its part of takes as long.
    """
    links = min(devices - 1, 2)
    bytes_on_link = size * (devices - 1) / devices / links
    return max(bytes_on_link / chip.link_bandwidth, devices / 2 * HOP_SECONDS)


def sum_seconds(chip: Chip, devices: int, size: int) -> float:
    """One sum of `size` bytes: first each device gets the sum of its part, then all get all parts."""
    return 2 * gather_seconds(chip, devices, size)


def network_of(chip: Chip | None, mesh: Mesh | None) -> "Network | None":
    """The devices of a mesh; None where they are no TPUs, or one that is here and has no mesh."""
    if chip is None or chip.platform != "tpu" or mesh is None:
        return None
    return Network(chip, [tuple(device.coords) for device in mesh.devices.flat])


@dataclass
class Network:
    """The links of a slice while a program runs. `positions` are the coordinates of the devices, in the mesh's order.

    What is sent goes along one axis after the other; no link leads around the end of an axis. Arrays that want the same
    link follow each other.
    """

    chip: Chip
    positions: Sequence[Position]
    _free: dict[Link, float] = field(default_factory=dict)

    def permute(self, now: float, size: int, pairs: Sequence[tuple[int, int]]) -> float:
        """When `size` bytes from each source have reached its target, sent at `now`; in seconds."""
        routes = [list(_route(self.positions[source], self.positions[target])) for source, target in pairs]
        loads = Counter(link for route in routes for link in route)
        if not loads:
            return now
        begin = max(now, *(self._free.get(link, 0.0) for link in loads))
        sent = begin + max(loads.values()) * size / self.chip.link_bandwidth
        self._free.update(dict.fromkeys(loads, sent))
        return sent + max(map(len, routes)) * HOP_SECONDS

    def pass_time(self, seconds: float) -> None:
        """Everything under way is as much later."""
        self._free = {link: free + seconds for link, free in self._free.items()}


def _route(source: Position, target: Position) -> Iterator[Link]:
    here = source
    for axis, end in enumerate(target):
        while here[axis] != end:
            step = 1 if end > here[axis] else -1
            following = (*here[:axis], here[axis] + step, *here[axis + 1 :])
            yield here, following
            here = following
