"""A device that is not there: tensors that say they are elsewhere, but hold their numbers in host memory.

Under ``PretendDevice`` whole runs with ``device="meta"`` take place with real numbers, so that they can be compared
with runs on the host bit by bit. The mode checks what a GPU would:

    a mix of devices            raises, unless it is a number (no dimensions) of the host in arithmetic
    noise of another device     raises: a generator serves its own device
    a number that is read       is recorded with the line that reads it: a GPU would have to finish all its work first
    a copy from the host        is recorded, too

torch's own fake tensors (``FakeTensorMode``) have no numbers, so that nothing with a loop that looks at its convergence
can run under them; ``test_devices.py`` asks them for a second opinion where there is no such loop.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

import casal
import casal.streams

HOST, THERE = torch.device("cpu"), torch.device("meta")
ROOM = str(Path(casal.__file__).parent)
aten = torch.ops.aten

MOVES = {aten._to_copy, aten.copy_, aten.copy}
"""Operations that take numbers from one device to another."""

WAITS = {
    aten._local_scalar_dense,
    aten.is_nonzero,
    aten.equal,
    aten.nonzero,
    aten.nonzero_numpy,
    aten.masked_select,
    aten._unique2,
    aten.unique_dim,
    aten.unique_consecutive,
    aten.bincount,
    aten.repeat_interleave,
    aten._linalg_check_errors,
    aten._linalg_eigh,
    aten._linalg_svd,
    aten.linalg_lstsq,
    aten.linalg_eig,
}
"""Operations after which the host must wait for the device: they read a number, or a shape depends on one."""

NUMBERS_MAY_BE_HERE = {
    getattr(aten, name + end)
    for name in ("add", "sub", "mul", "div", "pow", "maximum", "minimum", "atan2", "eq", "ne", "lt", "le", "gt", "ge")
    for end in ("", "_")
    if hasattr(aten, name + end)
} | {aten.rsub, aten.where, aten.fill_, aten.index_put_, aten.index_put, aten.masked_fill, aten.masked_fill_}
"""Operations that take a number of the host beside tensors of a device."""


class There(Tensor):
    """A tensor of the device."""

    numbers: Tensor

    @staticmethod
    def __new__(cls, numbers: Tensor) -> There:
        strided = numbers.layout == torch.strided
        made = Tensor._make_wrapper_subclass(
            cls,
            numbers.shape,
            strides=numbers.stride() if strided else None,
            storage_offset=numbers.storage_offset() if strided else None,
            dtype=numbers.dtype,
            device=THERE,
        )
        made.numbers = numbers
        return made

    def tolist(self) -> Any:
        return self.to(HOST).tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"{func} on a tensor of the device outside of PretendDevice")


_Generator = torch.Generator


class Stream(_Generator):
    """A generator of the device."""

    @property
    def device(self) -> torch.device:
        return THERE


class FilledStream(Stream):
    """One that ``casal.streams.stream`` fills word by word as on the host, so that both have the same numbers."""

    _filled = False

    @property
    def device(self) -> torch.device:
        return THERE if self._filled else HOST

    def set_state(self, state: Tensor) -> Any:
        self._filled = True
        return super().set_state(state)


class _EveryGenerator(type(_Generator)):  # type: ignore[misc]
    def __instancecheck__(cls, thing: object) -> bool:
        return isinstance(thing, _Generator)


class StreamOn(_Generator, metaclass=_EveryGenerator):
    """In the place of ``torch.Generator``."""

    def __new__(cls, device: Any = "cpu") -> Any:
        return Stream() if torch.device(device).type == THERE.type else _Generator(device)


class Line(NamedTuple):
    """A line of the package: the innermost one, and the functions of the package around it, innermost first."""

    place: str
    around: tuple[str, ...]


class PretendDevice(TorchDispatchMode):
    """See above.

    Attributes:
        reads: Where numbers were read, how often.
        uploads: Where numbers of the host were copied to the device, how often.
    """

    def __init__(self) -> None:
        super().__init__()
        self.reads: Counter[Line] = Counter()
        self.uploads: Counter[Line] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        packet = func.overloadpacket
        parts = [part for part in tree_flatten((args, kwargs))[0] if isinstance(part, Tensor)]
        there = [part for part in parts if isinstance(part, There)]
        here = [part for part in parts if not isinstance(part, There)]
        if any(part.device == THERE for part in here):
            raise RuntimeError(f"{packet} got a tensor of the device that was made behind the back of PretendDevice")
        where = kwargs.get("device")
        goes = bool(there) if where is None else torch.device(where).type == THERE.type
        if packet in MOVES:
            if packet is not aten._to_copy:
                goes = isinstance(args[0], There)
            source = args[0] if packet is aten._to_copy else args[1]
            if isinstance(source, There) and not goes:
                self.reads[_line(str(packet))] += 1
            elif goes and not isinstance(source, There):
                self.uploads[_line(str(packet))] += 1
        elif there and here:
            self._check_mix(packet, args, here)
        if there and (packet in WAITS or (packet in (aten.index, aten.index_put_, aten.index_put) and _mask(args[1]))):
            self.reads[_line(str(packet))] += 1
        if kwargs.get("generator") is not None and isinstance(_Streams.given, Stream) != goes:
            raise RuntimeError(f"{packet} draws numbers with a generator of another device")
        if packet is aten._local_scalar_dense or (not goes and not there):
            return func(*tree_map(_numbers, args), **tree_map(_numbers, {**kwargs, **_host(kwargs)}))
        out = func(*tree_map(_numbers, args), **tree_map(_numbers, {**kwargs, **_host(kwargs)}))
        return _returned(func, args, kwargs, out, goes)

    def _check_mix(self, packet: Any, args: Any, here: list[Tensor]) -> None:
        if packet in (aten.index, aten.index_put_, aten.index_put) and isinstance(args[0], There):
            self.uploads[_line(str(packet))] += 1  # torch itself copies indices of the host
            here = [part for part in here if not any(part is index for index in args[1])]
        if any(part.ndim for part in here) or (here and packet not in NUMBERS_MAY_BE_HERE):
            shapes = [tuple(part.shape) for part in here]
            raise RuntimeError(f"{packet} mixes devices: {shapes} of the host with tensors of the device")

    def places(self, counts: Counter[Line], inside: str | None = None) -> Counter[str]:
        """How often each line, anywhere or inside of a function."""
        found: Counter[str] = Counter()
        for line, count in counts.items():
            if inside is None or any(name.endswith(":" + inside) for name in line.around):
                found[line.place] += count
        return found


def _returned(func: Any, args: Any, kwargs: Any, out: Any, goes: bool) -> Any:
    """What an operation gives back: its own argument where it writes into one."""
    changed = [
        (kwargs[a.name] if a.name in kwargs else args[k] if k < len(args) else None)
        for k, a in enumerate(func._schema.arguments)
        if a.alias_info is not None and a.alias_info.is_write
    ]
    if changed and not isinstance(out, (list, tuple)):
        return changed[0]
    if changed and len(changed) == len(out):
        return type(out)(changed)
    return tree_map(lambda part: There(part) if goes and isinstance(part, Tensor) else part, out)


def _numbers(part: Any) -> Any:
    return part.numbers if isinstance(part, There) else part


def _host(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {"device": HOST} if kwargs.get("device") is not None else {}


def _mask(indices: Any) -> bool:
    return any(isinstance(part, Tensor) and part.dtype in (torch.bool, torch.uint8) for part in indices)


def _line(what: str) -> Line:
    """Where the package is."""
    frame, place, around = sys._getframe(2), "", list[str]()
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(ROOM):
            name = code.co_filename[len(ROOM) + 1 :]
            place = place or f"{name}:{frame.f_lineno} {code.co_name} ({what.split('.')[-1]})"
            around.append(f"{name}:{code.co_name}")
        frame = frame.f_back  # type: ignore[assignment]
    return Line(place, tuple(around))


class _Streams(TorchFunctionMode):
    """Remembers the generator that is given to an operation: below, torch hands over another object for it.

    It also makes tensors of Python's numbers on the host first, as torch does for a GPU.
    """

    given: torch.Generator | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        _Streams.given = kwargs.get("generator")
        if func in (torch.tensor, torch.as_tensor, Tensor.new_tensor):
            goes = kwargs.get("device", args[0].device if func is Tensor.new_tensor else None)
            kwargs = {**kwargs, "device": HOST if goes is not None and torch.device(goes) == THERE else goes}
            made = func(*args, **kwargs) if not isinstance(args[-1], There) else args[-1].to(kwargs.get("dtype"))
            return made if kwargs["device"] == goes else made.to(THERE)
        if func is torch.sparse.mm and isinstance(args[0], There) and isinstance(args[1], There):
            return There(func(args[0].numbers, args[1].numbers))  # a wrapper cannot say that it is sparse
        if func in (Tensor.__getitem__, Tensor.__setitem__) and isinstance(args[0], There):
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            moved = [torch.tensor(part).to(THERE) if isinstance(part, list) else part for part in index]
            args = (args[0], tuple(moved), *args[2:])
        return func(*args, **kwargs)


@contextmanager
def pretend_device() -> Iterator[PretendDevice]:
    """The device, and generators for it."""

    def generator(device: Any = "cpu") -> Any:
        return FilledStream() if torch.device(device).type == THERE.type else _Generator(device)

    own = SimpleNamespace(Generator=generator, from_numpy=torch.from_numpy)
    with (
        mock.patch.object(torch, "Generator", StreamOn),
        mock.patch.object(casal.streams, "torch", own),
        _Streams(),
        PretendDevice() as device,
    ):
        yield device


def there(tensor: Tensor) -> Tensor:
    """A copy on the device."""
    return There(tensor.clone())


def here(tensor: Tensor) -> Tensor:
    """The numbers of a tensor of either device."""
    return tensor.numbers if isinstance(tensor, There) else tensor
