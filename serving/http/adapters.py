"""The LoRA adapters that requests may name in place of a model."""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from jaxllm.errors import ConfigError, RequestError, quoted
from jaxllm.requests.lora_request import LoRARequest
from jaxllm.serving.http.errors import HttpError
from jaxllm.serving.http.shared_adapters import ServedAdapter, SharedAdapters


class ServedAdapters:
    """Adapters by name, in the order in which they came. A name of the model is none of theirs.

    With `shared` they are those of several processes: what one of them changes, the others know when they next ask.
    """

    def __init__(self, model_names: Sequence[str], shared: SharedAdapters | None = None) -> None:
        self._model_names, self._shared = tuple(model_names), shared
        self._own: dict[str, ServedAdapter] = {}
        self._version = self._last = 0

    def __iter__(self) -> Iterator[ServedAdapter]:
        return iter(self._adapters.values())

    def find(self, name: str) -> LoRARequest | None:
        """The adapter of a name, if there is one."""
        served = self._adapters.get(name)
        return None if served is None else served.request

    def knows(self, name: str) -> bool:
        """Whether the name is that of an adapter, or of the model."""
        return name in self._model_names or name in self._adapters

    def get(self, name: str) -> ServedAdapter | None:
        """The adapter of this name, None if there is none."""
        return self._adapters.get(name)

    @property
    def names(self) -> list[str]:
        """All names."""
        return list(self._adapters)

    def make(self, name: str, path: str, *, load_inplace: bool = False) -> LoRARequest:
        """A request for an adapter that is to be served. Raises `RequestError` and an error of status 400.

        Its number is none that an adapter has had before. A request that was on its way when that one was removed
        still asks for that one, and the engine takes neither for the other.
        """
        if name in self._model_names:
            raise RequestError(f"lora_name={quoted(name)} is a name of the model; choose another", "lora_name")
        known = self._adapters.get(name)
        if known is not None and not load_inplace:
            raise already_loaded(name)
        number = known.request.lora_int_id if known is not None else self._last + 1
        return LoRARequest(name, number, path, load_inplace=load_inplace)

    def add(self, request: LoRARequest, parent: str | None = None) -> None:
        """Serve an adapter."""
        plain = LoRARequest(request.lora_name, request.lora_int_id, request.lora_path)
        with self._changing():
            self._own[request.lora_name] = ServedAdapter(plain, parent or self._model_names[0])
            self._last = max(self._last, request.lora_int_id)

    def remove(self, name: str) -> None:
        """Serve an adapter no more."""
        with self._changing():
            self._own.pop(name, None)

    @property
    def have_begun(self) -> bool:
        """Whether another process, or this one before a restart, serves what is given from the start."""
        return self._shared is not None and self._shared.version > 0

    def begin_with(self, others: "ServedAdapters") -> None:
        """Serve these from the start, unless another process has begun: then what it serves now counts."""
        with self._changing():
            if not self._version:
                self._own = {each.request.lora_name: each for each in others}
                self._last = max([self._last, *(each.request.lora_int_id for each in others)])

    @property
    def _adapters(self) -> dict[str, ServedAdapter]:
        if self._shared is not None and self._shared.version != self._version:
            with self._shared.locked():
                self._refresh(self._shared)
        return self._own

    @contextmanager
    def _changing(self) -> Iterator[None]:
        if self._shared is None:
            yield
            return
        with self._shared.locked():
            self._refresh(self._shared)
            yield
            self._version = self._shared.write(list(self._own.values()), self._last)

    def _refresh(self, shared: SharedAdapters) -> None:
        self._version, self._last, adapters = shared.read()
        self._own = {each.request.lora_name: each for each in adapters}


def already_loaded(name: str) -> HttpError:
    """The adapter is served already."""
    message = f"adapter {quoted(name)} is loaded; unload it first, or give load_inplace to read it again"
    return HttpError(400, message, param="lora_name", code="adapter_loaded")


@dataclass(frozen=True)
class NamedAdapter:
    """What `--lora-modules` says of an adapter."""

    name: str
    path: str
    base_model_name: str | None = None


def parse_modules(given: Iterable[str]) -> list[NamedAdapter]:
    """Adapters of `--lora-modules`: `name=path`, or JSON objects with name, path and base_model_name.

    Raises `ConfigError`.
    """
    found: dict[str, NamedAdapter] = {}
    for text in given:
        adapter = _parse_object(text) if text.lstrip().startswith("{") else _parse_pair(text)
        if adapter.name in found:
            raise ConfigError(f"lora_modules: two adapters are called {adapter.name[:200]!r}")
        found[adapter.name] = adapter
    return list(found.values())


def _parse_pair(text: str) -> NamedAdapter:
    name, sign, path = text.partition("=")
    if not (name and sign and path):
        raise ConfigError(f"lora_modules: {text[:200]!r} is neither name=path nor a JSON object")
    return NamedAdapter(name, path)


def _parse_object(text: str) -> NamedAdapter:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"lora_modules: {text[:200]!r} is not JSON ({error})") from None
    known = {"name", "path", "base_model_name"}
    if not isinstance(value, dict) or value.keys() - known or not {"name", "path"} <= value.keys():
        raise ConfigError(f"lora_modules: {text[:200]!r} must be an object with name, path and maybe base_model_name")
    if not all(isinstance(each, str) and each for each in value.values()):
        raise ConfigError(f"lora_modules: {text[:200]!r}: name, path and base_model_name are texts")
    return NamedAdapter(**value)
