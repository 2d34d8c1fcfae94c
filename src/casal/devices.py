"""Where the host waits for the device: all reads of numbers that steps and projections cannot do without.

On a GPU the host runs ahead of the work that it hands out. To read a number (``float(t)``, ``bool(t)``, a mask as an
index) it must wait until all of that work is done. So steps read no numbers, projections look at their convergence only
now and then, and every place that does look goes through a function of this file; ``tests/contracts/test_devices.py``
counts them. In host memory a look costs nothing, so all of this leaves runs on the CPU as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

DEVICE_NUMBERS = 1 << 24
"""Numbers of chains that are worked on at once off the host: 64 MB of float32, since a call costs a GPU more than what
leaves its caches."""

CHECK_EVERY = 8
"""Iterations between two looks of an iterative projection off the host."""

P = ParamSpec("P")
R = TypeVar("R")


def on_host(x: Tensor) -> bool:
    """Whether numbers can be read without waiting."""
    return x.device.type == "cpu"


def entry(values: Tensor, row: Tensor) -> Tensor:
    """values[row] for whole numbers ``row`` of any shape, none of which is read: steps with it can be compiled."""
    return values.index_select(0, row.reshape(-1)).reshape(row.shape)


def number(t: Tensor) -> Any:
    """A zero-dimensional tensor as a float, which makes a step of many chains cheaper, where nobody has to wait for it.

    Elsewhere, and where a compiler reads it, it stays a tensor. (``torch.compiler.is_compiling`` is true in all threads
    while one of them compiles, so that eager steps beside it would round differently.)
    """
    return float(t) if on_host(t) and not torch.compiler.is_dynamo_compiling() else t


def seen(flag: Tensor) -> bool:
    """Whether a flag without dimensions is true: waits for the device."""
    return bool(flag)


def whole(value: Tensor) -> int:
    """A whole number without dimensions: waits for the device."""
    return int(value)


def chosen(mask: Tensor) -> Tensor:
    """Numbers (k,) of the chains that a mask (n,) says yes to: waits for the device, since k is not known before."""
    return torch.nonzero(mask).flatten()


def beside(index: Tensor, values: Tensor) -> Tensor:
    """Numbers of chains on the device of the values they are to pick: from another device the host waits for them."""
    return index.to(values.device)


def check_due(iteration: int, x: Tensor) -> bool:
    """Whether an iteration (0, 1, ...) looks at its convergence: always on the host, else every CHECK_EVERY-th.

    Only for iterations that leave a chain as it is once it is done.
    """
    return on_host(x) or iteration % CHECK_EVERY == CHECK_EVERY - 1


_copies: WeakIdKeyDictionary = WeakIdKeyDictionary()


def placed(parameter: Tensor, like: Tensor) -> Tensor:
    """A parameter in the dtype and on the device of ``like``; the copy on a device is kept as long as the parameter."""
    if on_host(like) or parameter.device == like.device or torch.compiler.is_dynamo_compiling():
        return parameter.to(like)
    copies = _copies.setdefault(parameter, {})
    where = (like.dtype, like.device)
    if where not in copies:
        copies[where] = parameter.to(like)
    return cast(Tensor, copies[where])


def amend(out: Tensor, mask: Tensor, function: Callable[..., Tensor], *parts: Tensor) -> Tensor:
    """``function(*parts)`` in the rows (n,) of a mask, ``out`` in the others; all of them have the chains as dim 0.

    On the host only the rows of the mask are worked on, and written into ``out``; elsewhere all rows, since to count
    them is to wait.
    """
    if on_host(out):
        some = torch.nonzero(mask).flatten()
        if len(some):
            out[some] = function(*(part[some] for part in parts))
        return out
    return torch.where(mask.reshape(-1, *[1] * (out.ndim - 1)), function(*parts), out)


def write(chains: Tensor, mask: Tensor, *parts: tuple[Tensor, Tensor | float]) -> None:
    """Put values of the chains at work (k,) into the rows of ``out`` with these numbers, where a mask (k,) says yes.

    On the host only the rows of the mask are touched; elsewhere all of them, since to count them is to wait.

    Args:
        chains: Numbers of the chains at work.
        mask: Which of them are written.
        parts: Pairs of ``out`` and values.
    """
    if on_host(mask):
        some = torch.nonzero(mask).flatten()
        if len(some):
            rows = chains[some]
            for out, values in parts:
                out[rows] = values[some] if isinstance(values, Tensor) else values
        return
    for out, values in parts:
        out[chains] = torch.where(mask.reshape(-1, *[1] * (out.ndim - 1)), values, out[chains])


def in_host_memory(function: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """Mark a function that works in host memory alone (LAPACK): tensors from elsewhere are fetched, which waits."""

    @wraps(function)
    def anywhere(*args: P.args, **kwargs: P.kwargs) -> Tensor:
        where = next(part.device for part in args if isinstance(part, Tensor))
        if where.type == "cpu":
            return function(*args, **kwargs)
        fetched: Any = [part.cpu() if isinstance(part, Tensor) else part for part in args]
        return function(*fetched, **kwargs).to(where)

    return anywhere


def waits(function: Callable[P, R]) -> Callable[P, R]:
    """Mark a function that reads numbers in each iteration: it sets chains aside as they are done, or rejects draws."""

    @wraps(function)
    def waiting(*args: P.args, **kwargs: P.kwargs) -> R:
        return function(*args, **kwargs)

    return waiting


def eigh(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors of symmetric matrices: torch waits for the device, to see whether it went well."""
    values, vectors = torch.linalg.eigh(matrix)
    return values, vectors


def solve(matrix: Tensor, right: Tensor) -> Tensor:
    """matrix^-1 right; numbers that are not finite where there is none, without a look."""
    found, failed = torch.linalg.solve_ex(matrix, right)
    return torch.where((failed > 0)[..., None, None], torch.nan, found)


def cholesky(matrix: Tensor) -> Tensor:
    """The Cholesky factor; numbers that are not finite where there is none, without a look."""
    factor, failed = torch.linalg.cholesky_ex(matrix)
    return torch.where((failed > 0)[..., None, None], torch.nan, factor)
