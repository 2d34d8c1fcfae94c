"""The errors of the library. A message contains the number that was wrong and the remedy."""

from __future__ import annotations

from collections.abc import Sequence


class CasalError(Exception):
    """Base of all errors of this library.

    >>> import casal
    >>> issubclass(casal.errors.InfeasibleSet, casal.errors.CasalError)
    True
    """


class CasalWarning(UserWarning):
    """The run finished, but its samples should not be trusted as they are.

    >>> import warnings
    >>> from casal.errors import CasalWarning
    >>> warnings.filterwarnings("error", category=CasalWarning)      # stop instead of going on
    """


class SettingError(CasalError, ValueError):
    """A setting that cannot work: a negative coupling, an unstable step, zero chains.

    >>> import casal
    >>> casal.geometric(-1.0, 10.0)
    Traceback (most recent call last):
        ...
    casal.errors.SettingError: a geometric schedule needs two positive ends, got -1.0 and 10.0
    """


class ShapeError(CasalError, ValueError):
    """Tensors that do not fit together.

    >>> import casal
    >>> import torch
    >>> casal.HalfSpace([1.0, 2.0], 0.0).project(torch.zeros(5, 3))
    Traceback (most recent call last):
        ...
    casal.errors.ShapeError: the set is written for 2 coordinates, events (3,) have 3: write it for 3 numbers, in ...
    """


class FunctionError(CasalError, RuntimeError):
    """A function that was handed over (gradient, energy, network, start, decoder) raised an error of its own.

    The message repeats it, and ``__cause__`` is that error.

    >>> import casal
    >>> import torch
    >>> target = casal.langevin(lambda x: x @ torch.ones(3), steps=10, step_size=0.1, init=torch.zeros(4, 2))
    >>> casal.sample(target, casal.Sphere(1.0), n=4)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    casal.errors.FunctionError: the gradient of langevin fails on 3 rows ...
    """


class DtypeError(CasalError, TypeError):
    """Tensors of different dtype or device where one was expected.

    >>> import casal
    >>> import torch
    >>> casal.GaussianStart(shape=(2,), dtype=torch.int64)
    Traceback (most recent call last):
        ...
    casal.errors.DtypeError: chains are floating-point numbers, got dtype=torch.int64
    """


class InfeasibleSet(CasalError, ValueError):
    """The set is empty, or its defining data contradict each other.

    >>> import casal
    >>> casal.Box(1.0, 0.0)
    Traceback (most recent call last):
        ...
    casal.errors.InfeasibleSet: low <= high fails for 1 of 1 bounds, first at (): low = 1, high = 0
    """


class ProjectionError(CasalError):
    """A projection received, or returned, points that are not finite or not of the right kind.

    Attributes:
        chains: Indices of the points that were not finite when they were handed in.

    >>> import casal
    >>> import torch
    >>> casal.Sphere(1.0).project(torch.tensor([[0.0, 1.0], [float("nan"), 1.0]]))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    casal.errors.ProjectionError: ...
    """

    def __init__(self, message: str, *, chains: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.chains = tuple(chains)


class MissingExtraError(CasalError, ImportError):
    """An optional library is not installed; the message contains the command that installs it.

    >>> from casal.errors import MissingExtraError, missing_extra
    >>> raise MissingExtraError(missing_extra("result.plot()", "plot", "matplotlib"))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    casal.errors.MissingExtraError: result.plot() needs matplotlib: pip install 'casal[plot]', or in a clone ...
    """


class StoreError(CasalError):
    """A store on disk that cannot be read, written or continued.

    >>> import casal
    >>> casal.load("no/such/run.zarr")
    Traceback (most recent call last):
        ...
    casal.errors.StoreError: there is no store at no/such/run.zarr
    """


class DivergedError(CasalError):
    """Some chains left the range of floating point numbers.

    Attributes:
        step: The step (counted from 1) after which the first chain was no longer finite; 0 before any step.
        steps: How many steps the run was to take.
        chains: Indices of the chains that were lost by then.

    >>> import casal
    >>> import torch
    >>> target = casal.langevin(lambda x: x**3, steps=100, step_size=10.0, init=torch.ones(10, 2))
    >>> casal.sample(target, casal.Sphere(1.0), casal.Unconstrained(), n=10)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    casal.errors.DivergedError: ...
    """

    def __init__(self, message: str, *, step: int, steps: int, chains: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.step = step
        self.steps = steps
        self.chains = tuple(chains)


def missing_extra(what: str, extra: str, library: str) -> str:
    """The sentence for an optional library that is not there, with a command for a package and one for a clone.

    >>> print(missing_extra("result.plot()", "plot", "matplotlib"))
    result.plot() needs matplotlib: pip install 'casal[plot]', or in a clone pip install -e '.[plot]'
    """
    return f"{what} needs {library}: pip install 'casal[{extra}]', or in a clone pip install -e '.[{extra}]'"
