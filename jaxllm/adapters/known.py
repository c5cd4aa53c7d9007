"""Which adapters an engine knows, by their names."""

from collections.abc import Callable, Iterator

from jaxllm.adapters.store import AdapterKey
from jaxllm.requests.lora_request import LoRARequest


class KnownAdapters:
    """Adapters by name: the one that was loaded under it, and another if a request has last asked for that.

    A request may arrive after its adapter was replaced or removed: its API server had looked the name up before. It is
    served, and changes nothing for those that ask for what the name means now.
    """

    def __init__(self, forget: Callable[[AdapterKey], None]) -> None:
        """`forget` is told each adapter that is known no more."""
        self._forget = forget
        self._loaded: dict[str, AdapterKey] = {}
        self._requested: dict[str, AdapterKey] = {}
        self._num_added = 0

    def __len__(self) -> int:
        return len(self._loaded) + len(self._requested)

    def find(self, lora: LoRARequest) -> AdapterKey | None:
        """The key of an adapter, if it is known."""
        return next((key for key in self.named(lora.lora_name) if key.is_of(lora)), None)

    def named(self, name: str) -> Iterator[AdapterKey]:
        """The adapters of a name."""
        for keys in (self._loaded, self._requested):
            if name in keys:
                yield keys[name]

    def load(self, lora: LoRARequest) -> AdapterKey:
        """What the name stands for from now on. It has a new key if it was not known, and with `load_inplace`."""
        known = None if lora.load_inplace else self.find(lora)
        self._remove(lora.lora_name, other_than=known)
        key = self._loaded[lora.lora_name] = known or self._new_key(lora)
        return key

    def request(self, lora: LoRARequest) -> AdapterKey:
        """What a request asks for. It has a new key if it was not known, and with `load_inplace`."""
        if lora.load_inplace:
            self._remove(lora.lora_name)
        elif (known := self.find(lora)) is not None:
            return known
        before = self._requested.pop(lora.lora_name, None)
        if before is not None:
            self._forget(before)
        key = self._requested[lora.lora_name] = self._new_key(lora)
        return key

    def remove(self, name: str) -> bool:
        """Know no adapter of this name any more. False if there was none."""
        return self._remove(name)

    def discard(self, key: AdapterKey) -> None:
        """One that cannot be read is not known: whoever asks next has it read again."""
        for keys in (self._loaded, self._requested):
            if keys.get(key.name) == key:
                del keys[key.name]

    def _remove(self, name: str, other_than: AdapterKey | None = None) -> bool:
        keys = list(self.named(name))
        self._loaded.pop(name, None)
        self._requested.pop(name, None)
        for key in keys:
            if key != other_than:
                self._forget(key)
        return bool(keys)

    def _new_key(self, lora: LoRARequest) -> AdapterKey:
        self._num_added += 1
        return AdapterKey(lora.lora_name, lora.lora_path, lora.lora_int_id, self._num_added)
