"""State dicts in the pickles that PyTorch writes, read without running anything.

A pickle is a program for a machine with a stack. This one knows the instructions that a dictionary of tensors takes,
and makes notes where PyTorch would call a function. Everything else is an error.
Format: https://docs.python.org/3/library/pickletools.html, and `torch.save`.
"""

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pickletools import genops
from typing import Any

STORAGES = {
    "torch.DoubleStorage": "F64",
    "torch.FloatStorage": "F32",
    "torch.HalfStorage": "F16",
    "torch.BFloat16Storage": "BF16",
    "torch.LongStorage": "I64",
    "torch.IntStorage": "I32",
    "torch.ShortStorage": "I16",
    "torch.CharStorage": "I8",
    "torch.ByteStorage": "U8",
    "torch.BoolStorage": "BOOL",
}
"""PyTorch's names of types, and those of safetensors."""

MAX_AXES = 64
MAX_VALUES = 2**59
"""What an axis of 0 hides alongside it: with more, NumPy cannot count the bytes."""


class PickleError(ValueError):
    """Why a pickle is not a state dict of tensors; the file's name is the caller's to add."""


@dataclass(frozen=True)
class Storage:
    """`size` values of type `dtype`, which lie outside the pickle under the name `key`."""

    key: str
    dtype: str
    size: int


@dataclass(frozen=True)
class View:
    """A tensor: values of a storage from number `offset` on; `strides` count values, too."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def read_state_dict(data: bytes) -> dict[str, View]:
    """Tensors by name. Raises `PickleError` for anything else, and for what is not a pickle."""
    found = _run(data)
    if not isinstance(found, dict):
        raise PickleError("it does not contain a dictionary of tensors")
    for name, value in found.items():
        if not isinstance(name, str) or not isinstance(value, View):
            raise PickleError(f"{str(name)[:80]!r} is not a tensor")
    return found


def read_tensor(data: bytes) -> View:
    """The one tensor of a pickle. Raises `PickleError` for anything else, and for what is not a pickle."""
    found = _run(data)
    if not isinstance(found, View):
        raise PickleError("it does not contain exactly one tensor")
    return found


def _run(data: bytes) -> Any:
    """The objects that a pickle leaves on the stack."""
    machine = _Machine()
    try:
        for opcode, argument, _ in genops(data):
            step = _STEPS.get(opcode.name)
            if step is None:
                raise PickleError(f"instruction {opcode.name} does not belong in a state dict")
            step(machine, argument)
    except PickleError:
        raise
    except (ValueError, IndexError, struct.error) as error:
        raise PickleError(f"invalid pickle ({error})") from None
    return machine.pop()


@dataclass(frozen=True)
class _Named:
    """A class or function; only its name is known."""

    name: str


class _Machine:
    """The stack, what lies beneath marks on it, and the memo."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []
        self.memo: dict[int, Any] = {}

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def pop(self) -> Any:
        if not self.stack:
            raise PickleError("invalid pickle (nothing on the stack)")
        return self.stack.pop()

    def mark(self, _: Any) -> None:
        self.below.append(self.stack)
        self.stack = []

    def pop_mark(self) -> list[Any]:
        if not self.below:
            raise PickleError("invalid pickle (no mark on the stack)")
        items, self.stack = self.stack, self.below.pop()
        return items

    def put(self, index: int) -> None:
        value = self.pop()
        self.memo[index] = value
        self.push(value)

    def get(self, index: int) -> None:
        if index not in self.memo:
            raise PickleError(f"invalid pickle (no {index} in the memo)")
        self.push(self.memo[index])

    def set_items(self, items: list[Any]) -> None:
        target = self.pop()
        keys, values = items[::2], items[1::2]
        # Only keys that are hashed without looking at what else is on the stack.
        if not isinstance(target, dict) or len(keys) != len(values) or not all(type(key) in (str, int) for key in keys):
            raise PickleError("a dictionary has keys that are neither strings nor numbers")
        target.update(zip(keys, values, strict=True))
        self.push(target)

    def name(self, module: Any, name: Any) -> None:
        full = f"{module}.{name}" if isinstance(module, str) and isinstance(name, str) else "something without a name"
        if full not in STORAGES and full not in _CALLS:
            raise PickleError(f"{full[:200]!r} does not belong in a state dict of tensors, and is not run")
        self.push(_Named(full))

    def reduce(self, _: Any) -> None:
        arguments, function = self.pop(), self.pop()
        call = _CALLS.get(function.name) if isinstance(function, _Named) else None
        if call is None or not isinstance(arguments, tuple):
            raise PickleError("invalid pickle (a call of something that is not a function)")
        self.push(call(*arguments))

    def storage(self, _: Any) -> None:
        match self.pop():
            case ("storage", _Named(name), str(key), _, int(size)) if name in STORAGES and size >= 0:
                self.push(Storage(key, STORAGES[name], size))
            case _:
                raise PickleError("invalid pickle (not a storage)")

    def ignore_state(self, _: Any) -> None:
        # What PyTorch notes about modules, as an attribute of the dictionary.
        if not isinstance(self.pop(), dict) or not self.stack or not isinstance(self.stack[-1], dict):
            raise PickleError("an object has custom state")


def _ordered_dict(*arguments: Any) -> dict[Any, Any]:
    if arguments:
        raise PickleError("a dictionary is built from something other than its items")
    return {}


def _tensor(*arguments: Any) -> View:
    storage, offset, shape, strides = (*arguments, *(None,) * 4)[:4]
    counts = (offset, *shape, *strides) if isinstance(shape, tuple) and isinstance(strides, tuple) else (None,)
    is_count = all(type(count) is int and 0 <= count < 2**63 for count in counts)
    if not isinstance(storage, Storage) or not is_count or len(counts) > 1 + 2 * MAX_AXES:
        raise PickleError("invalid pickle (not a tensor)")
    if len(shape) != len(strides):
        raise PickleError("invalid pickle (a tensor whose strides do not match its axes)")
    last = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    if all(shape) and offset + last >= storage.size:
        raise PickleError(f"a tensor of shape {list(shape)[:8]} exceeds its storage of {storage.size} values")
    if math.prod(size for size in shape if size) > MAX_VALUES:
        raise PickleError(f"a tensor of shape {list(shape)[:8]}, which is not a valid array shape")
    # PyTorch allows any stride where nothing follows. NumPy counts in bytes, and a large one would be none.
    strides = tuple(stride if size > 1 and all(shape) else 0 for size, stride in zip(shape, strides, strict=True))
    return View(storage, offset, shape, strides)


def _parameter(*arguments: Any) -> View:
    if not arguments or not isinstance(arguments[0], View):
        raise PickleError("invalid pickle (a parameter without a tensor)")
    return arguments[0]


_CALLS: dict[str, Callable[..., Any]] = {
    "collections.OrderedDict": _ordered_dict,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_parameter": _parameter,
    "torch.nn.parameter.Parameter": _parameter,
}

_Step = Callable[[_Machine, Any], None]


def _constant(make: Callable[[], Any]) -> _Step:
    return lambda machine, _: machine.push(make())


def _tuple(size: int) -> _Step:
    return lambda machine, _: machine.push(tuple([machine.pop() for _ in range(size)][::-1]))


def _name_of_two(machine: _Machine, _: Any) -> None:
    name, module = machine.pop(), machine.pop()
    machine.name(module, name)


def _set_one(machine: _Machine, _: Any) -> None:
    value, key = machine.pop(), machine.pop()
    machine.set_items([key, value])


_STEPS: dict[str, _Step] = {
    **dict.fromkeys(("PROTO", "FRAME", "STOP"), lambda machine, _: None),
    **dict.fromkeys(("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"), _Machine.push),
    **dict.fromkeys(("BINUNICODE", "SHORT_BINUNICODE"), _Machine.push),
    **dict.fromkeys(("BINPUT", "LONG_BINPUT"), _Machine.put),
    **dict.fromkeys(("BINGET", "LONG_BINGET"), _Machine.get),
    "MEMOIZE": lambda machine, _: machine.put(len(machine.memo)),
    "NONE": _constant(lambda: None),
    "NEWTRUE": _constant(lambda: True),
    "NEWFALSE": _constant(lambda: False),
    "EMPTY_DICT": _constant(dict),
    "EMPTY_TUPLE": _constant(tuple),
    "MARK": _Machine.mark,
    "TUPLE": lambda machine, _: machine.push(tuple(machine.pop_mark())),
    "TUPLE1": _tuple(1),
    "TUPLE2": _tuple(2),
    "TUPLE3": _tuple(3),
    "SETITEM": _set_one,
    "SETITEMS": lambda machine, _: machine.set_items(machine.pop_mark()),
    "GLOBAL": lambda machine, argument: machine.name(*argument.partition(" ")[::2]),
    "STACK_GLOBAL": _name_of_two,
    "REDUCE": _Machine.reduce,
    "BINPERSID": _Machine.storage,
    "BUILD": _Machine.ignore_state,
}
