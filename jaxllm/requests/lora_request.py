"""The adapter that a request asks for."""

from dataclasses import dataclass
from numbers import Integral
from os import PathLike, fspath

from jaxllm.errors import RequestError, quoted

MAX_NAME = 256
"""Characters of an adapter's name."""


@dataclass(frozen=True)
class LoRARequest:
    """An adapter by name, and the folder that it is read from when it is first asked for.

    `lora_int_id` is a number of 1 or more, as vLLM wants one for each adapter: another number is another adapter,
    which is read for itself. With `load_inplace` the folder is read again, and replaces what has that name.

    Raises `RequestError` for values of other types, an empty name or path, and a number below 1.
    """

    lora_name: str
    lora_int_id: int = 1
    lora_path: str = ""
    base_model_name: str | None = None
    load_inplace: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.lora_path, PathLike):
            object.__setattr__(self, "lora_path", fspath(self.lora_path))
        if isinstance(self.lora_int_id, Integral):
            object.__setattr__(self, "lora_int_id", int(self.lora_int_id))
        for name, kind in (("lora_name", str), ("lora_path", str), ("lora_int_id", int), ("load_inplace", bool)):
            value: object = getattr(self, name)
            if type(value) is not kind:
                given = type(value).__name__
                raise RequestError(f"lora_request: {name} must be {kind.__name__}, found {given}", "lora_request")
        if not 0 < len(self.lora_name) <= MAX_NAME:
            raise RequestError(f"lora_request: lora_name must have 1 to {MAX_NAME} characters", "lora_request")
        if not self.lora_path:
            raise RequestError(f"lora_request: lora_path of {quoted(self.lora_name)} is empty", "lora_request")
        if self.lora_int_id < 1:
            raise RequestError(f"lora_request: lora_int_id={self.lora_int_id} must be at least 1", "lora_request")

    @property
    def name(self) -> str:
        """The same as `lora_name`, as vLLM has it."""
        return self.lora_name

    @property
    def path(self) -> str:
        """The same as `lora_path`, as vLLM has it."""
        return self.lora_path
