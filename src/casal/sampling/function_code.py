"""Functions and objects as checksums of their code and of the values they use, the same in every process."""

from __future__ import annotations

import dis
import functools
import hashlib
import json
import sys
import types
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

MOST_PARTS = 20_000
"""Functions, objects and values that are followed from one function; what lies beyond counts by its type."""

LIBRARIES = frozenset(sys.stdlib_module_names) - {"__main__"} | {"casal", "numpy", "torch"}
"""Modules whose code is known by its name and version."""


class CodeParts:
    """The code of functions and objects, and the values they use, each with a checksum.

    Followed are closures, defaults, globals that the code names, attributes of objects, and the classes of objects; of
    libraries the names alone. Of objects, private attributes that the class declares too are left out: caches.

    Args:
        value: Functions, objects, or lists of them.
        values: Whether numbers, text and tensors count; if not, the code alone does.

    Attributes:
        found: Where in ``value`` to checksum.
        own: Whether code was found that is of no library.
        parameters: Numbers in the parameters of the networks that were found.
    """

    def __init__(self, value: Any, *, values: bool) -> None:
        self.found: dict[str, str] = {}
        self.own, self.parameters = False, 0
        self._values, self._seen = values, dict[int, Any]()
        self._follow("", value)

    def digest(self, later: CodeParts) -> str:
        """One checksum of what is the same later: what a call changes is a counter or a cache, not a setting."""
        same = sorted((place, sum_) for place, sum_ in self.found.items() if later.found.get(place) == sum_)
        return hashlib.sha256(json.dumps(same).encode()).hexdigest()[:16]

    def _follow(self, place: str, value: Any) -> None:
        if value is None or isinstance(value, bool | int | float | complex | str | bytes | torch.dtype | torch.device):
            self._keep(place, repr(value).encode())
        elif isinstance(value, Tensor | np.ndarray | np.generic):
            self._keep(place, _numbers(value))
        elif isinstance(value, types.ModuleType):
            self.found[place] = value.__name__
        elif id(value) not in self._seen and len(self._seen) < MOST_PARTS:
            self._seen[id(value)] = value  # kept, so that no other object gets its number
            self._follow_object(place, value)

    def _keep(self, place: str, content: bytes) -> None:
        if self._values:
            self.found[place] = hashlib.sha256(content).hexdigest()[:16]

    def _follow_object(self, place: str, value: Any) -> None:
        if isinstance(value, list | tuple):
            for k, item in enumerate(value):
                self._follow(f"{place}[{k}]", item)
        elif isinstance(value, dict):
            for key, item in value.items():
                self._follow(f"{place}[{_key(key)}]", item)
        elif isinstance(value, set | frozenset):
            self._keep(place, json.dumps(sorted(map(_key, value))).encode())
        elif isinstance(value, types.FunctionType):
            self._follow_function(place, value)
        elif isinstance(value, types.MethodType):
            self._follow(f"{place}.self", value.__self__)
            self._follow(place, value.__func__)
        elif isinstance(value, functools.partial):
            self._follow(place, [value.func, value.args, value.keywords])
        elif isinstance(value, type):
            self._follow_class(place, value)
        elif isinstance(value, staticmethod | classmethod):
            self._follow(place, value.__func__)
        elif isinstance(value, property | functools.cached_property):
            self._follow(place, value.fget if isinstance(value, property) else value.func)
        elif isinstance(value, torch.nn.Module):
            self._follow_module(place, value)
        else:
            self._follow_instance(place, value)

    def _follow_function(self, place: str, function: types.FunctionType) -> None:
        code = function.__code__
        self.found[f"{place}()"] = function.__name__
        if not _is_library(function.__module__):
            self.own = True
            self.found[f"{place}()"] = _code_digest(code)
            for name in sorted(_globals_of(code) & function.__globals__.keys()):
                self._follow(f"{place}:{name}", function.__globals__[name])
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            with suppress(ValueError):  # an empty cell
                self._follow(f"{place}.{name}", cell.cell_contents)
        self._follow(f"{place}.defaults", [function.__defaults__, function.__kwdefaults__])
        self._follow(f"{place}.wrapped", getattr(function, "__wrapped__", None))

    def _follow_class(self, place: str, kind: type) -> None:
        self.found[f"{place}<>"] = kind.__qualname__
        for base in kind.__mro__:
            if _is_library(base.__module__):
                continue
            self.own = True
            for name, member in sorted(vars(base).items()):
                if not name.startswith(("__", "_abc_")) or isinstance(member, types.FunctionType):
                    self._follow(f"{place}<{base.__qualname__}>.{name}", member)

    def _follow_module(self, place: str, network: torch.nn.Module) -> None:
        self.parameters += sum(part.numel() for part in network.parameters())
        for name, part in network.named_modules():
            self._follow(f"{place}/{name}", type(part))
        if self._values:
            for name, tensor in network.state_dict().items():
                self._follow(f"{place}/{name}=", tensor)

    def _follow_instance(self, place: str, value: Any) -> None:
        kind = type(value)
        self._follow(f"{place}<>", kind)
        self.found[f"{place}<>"] = kind.__qualname__
        self._follow(f"{place}.wrapped", getattr(value, "__wrapped__", None))
        if _is_library(kind.__module__) and not kind.__module__.startswith("casal"):
            return
        for name, part in sorted(getattr(value, "__dict__", {}).items()):
            if not (name.startswith("_") and hasattr(kind, name)):
                self._follow(f"{place}.{name}", part)


def _is_library(module: str | None) -> bool:
    """Whether the code of a module is known by its name: it was installed, not written for the run."""
    if module is None or module.partition(".")[0] in LIBRARIES:
        return True
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return "site-packages" in file or "dist-packages" in file


def _code_digest(code: types.CodeType) -> str:
    """A checksum of bytecode, constants and names; neither of files and lines nor of names of local variables."""
    total = hashlib.sha256(code.co_code)
    total.update(repr((code.co_argcount, code.co_kwonlyargcount, code.co_flags, code.co_names)).encode())
    for constant in code.co_consts:
        total.update(_constant(constant).encode())
    return total.hexdigest()[:16]


def _constant(value: Any) -> str:
    if isinstance(value, types.CodeType):
        return _code_digest(value)
    if isinstance(value, frozenset):
        return f"frozenset{sorted(map(_constant, value))}"
    return f"({', '.join(map(_constant, value))})" if isinstance(value, tuple) else repr(value)


def _globals_of(code: types.CodeType) -> set[str]:
    """Names of the globals that a function and the functions inside it use."""
    names = {step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    inside = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return names.union(*map(_globals_of, inside))


def _key(value: Any) -> str:
    """A key or a member of a set as text, the same in every process."""
    return repr(value) if isinstance(value, bool | int | float | complex | str | bytes | None) else type(value).__name__


def _numbers(value: Any) -> bytes:
    """dtype, shape and bytes of a tensor or an array."""
    tensor = value.detach().cpu().contiguous() if isinstance(value, Tensor) else None
    if tensor is not None:
        plain = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
        return f"{tensor.dtype} {tuple(tensor.shape)} ".encode() + plain.resolve_conj().numpy().tobytes()
    array = np.asarray(value)
    return f"{array.dtype} {array.shape} ".encode() + (b"" if array.dtype.hasobject else array.tobytes())
