"""An installation: everything that manifests differ by, and names that they share."""

import re
from dataclasses import dataclass

from jaxllm.errors import ConfigError
from jaxllm.serving.deploy.hardware import Slice, slices_of

PORT = 8000
"""Where containers listen."""

GIB = 1 << 30


@dataclass(frozen=True)
class Bucket:
    """A folder of a Cloud Storage bucket; the folder may be empty, the whole bucket."""

    name: str
    folder: str

    @classmethod
    def parse(cls, flag: str, text: str) -> "Bucket":
        """From `gs://bucket/folder`. Raises `ConfigError`, naming the flag."""
        found = re.fullmatch(r"gs://([a-z0-9][a-z0-9._-]{1,61}[a-z0-9])(?:/([\w./-]*))?", text)
        if found is None:
            raise ConfigError(f"{flag} {text}: expected gs://BUCKET/FOLDER")
        folder = (found[2] or "").strip("/")
        if ".." in folder.split("/"):
            raise ConfigError(f"{flag} {text}: must not contain the folder '..'")
        return cls(found[1], folder)


@dataclass(frozen=True, kw_only=True)
class Installation:
    """One model on one kind of hardware, in some copies.

    Attributes:
        name: Name of all objects: letters, digits and hyphens.
        model: What `jaxllm serve` gets: a Hub ID, `demo`, or the folder in which pods see the bucket.
        hardware: What one copy runs on.
        tensor_parallel_size, data_parallel_size: How a copy uses its devices.
        max_model_len: Tokens of a request, where it is not the model's own.
        weights: Bytes of the model's weights, of all devices together.
        replicas, max_replicas: Fewest and most copies.
        image: Container image of `docs/deploy/images`.
        weights_bucket: Where pods find the model; None: on the Hub, or in the image.
        executables: Where `jaxllm compile` writes what pods load; None: each compiles for itself.
        api_keys: Whether clients need a key, which a Secret holds.
        drain: Seconds that running requests have when a pod ends.
        metrics_prefix: Prefix of metric names.
        flags: Further flags of `jaxllm serve`, as one writes them.
    """

    name: str
    model: str
    hardware: Slice
    image: str
    tensor_parallel_size: int = 1
    data_parallel_size: int = 1
    max_model_len: int | None = None
    weights: int = 0
    replicas: int = 1
    max_replicas: int = 1
    weights_bucket: Bucket | None = None
    executables: Bucket | None = None
    api_keys: bool = True
    drain: int = 60
    metrics_prefix: str = "jaxllm"
    flags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?", self.name):
            raise ConfigError(
                f"--name {self.name}: expected at most 40 lower-case letters, digits and hyphens, beginning with "
                "a letter"
            )
        if not re.fullmatch("[a-zA-Z_][a-zA-Z0-9_]*", self.metrics_prefix):
            raise ConfigError(f"--metrics-prefix {self.metrics_prefix}: expected letters, digits and underscores")
        if self.max_replicas < self.replicas:
            raise ConfigError(f"--max-replicas {self.max_replicas}: must be at least --replicas {self.replicas}")
        if self.executables is not None and self.hardware.hosts > 1:
            raise ConfigError(
                "--executables: bundles require engines on one host; omit it, or choose hardware with one host"
            )
        if self.executables is not None and self.hardware.platform == "tpu" and self.engine_topology is None:
            size, engines = self.tensor_parallel_size, self.data_parallel_size
            raise ConfigError(
                f"--executables: no slice of {self.hardware.device} has exactly {size} chips for each of {engines} "
                "engines; omit it, or give another --tensor-parallel-size"
            )

    @property
    def labels(self) -> dict[str, str]:
        """Labels of every object, by which pods are selected."""
        return {"app.kubernetes.io/name": "jaxllm", "app.kubernetes.io/instance": self.name}

    @property
    def engine_topology(self) -> str | None:
        """The slice that has just the chips of one engine; None where there is none."""
        if self.data_parallel_size == 1:
            return self.hardware.topology
        found = (each for each in slices_of(self.hardware.device) if each.devices == self.tensor_parallel_size)
        return next((each.topology for each in found if each.hosts == 1), None)

    @property
    def is_scaled(self) -> bool:
        """Whether the number of copies changes with the load."""
        return self.max_replicas > self.replicas

    @property
    def group(self) -> str:
        """Name of the LeaderWorkerSet and of the headless Service by which its pods find each other."""
        return f"{self.name}-group"

    @property
    def keys_secret(self) -> str:
        """Name of the Secret with the API keys, one a line, under `keys`."""
        return f"{self.name}-keys"

    @property
    def hub_secret(self) -> str:
        """Name of the Secret with a token of the Hugging Face Hub, under `token`; there need not be one."""
        return f"{self.name}-hub"

    def engine_flags(self) -> list[str]:
        """Flags that shape the engine's programs; `jaxllm compile` and `jaxllm serve` take the same."""
        flags = ["--tensor-parallel-size", str(self.tensor_parallel_size)]
        if self.max_model_len is not None:
            flags += ["--max-model-len", str(self.max_model_len)]
        return flags

    def metadata(self, suffix: str = "") -> dict[str, object]:
        """The metadata of an object of this installation."""
        return {"name": f"{self.name}{suffix}", "labels": self.labels}
