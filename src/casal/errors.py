"""Every error the library raises on purpose. A message carries the number and the way out."""

from __future__ import annotations

from collections.abc import Sequence


class CasalError(Exception):
    """Base of all errors of this library."""


class CasalWarning(UserWarning):
    """The run went through, but its samples should not be trusted as they are."""


class SettingError(CasalError, ValueError):
    """A setting that cannot work: a negative coupling, an unstable step, zero chains."""


class ShapeError(CasalError, ValueError):
    """Tensors that do not fit together."""


class DtypeError(CasalError, TypeError):
    """Tensors of different dtype or device where one was expected."""


class InfeasibleSet(CasalError, ValueError):
    """The set is empty, or its defining data contradict each other."""


class ProjectionError(CasalError):
    """A projection was handed, or returned, something that is not a point of the kind it promised.

    Attributes:
        chains: Indices of the points that were not finite when they were handed in.
    """

    def __init__(self, message: str, *, chains: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.chains = tuple(chains)


class MissingExtraError(CasalError, ImportError):
    """An optional library is not installed; the message holds the command that brings it."""


class StoreError(CasalError):
    """A store on disk that cannot be read, written or continued."""


class DivergedError(CasalError):
    """Some chains left the range of floating point numbers.

    Attributes:
        step: The step (counted from 1) after which the first chain was no longer finite; 0 before any step.
        steps: How many steps the run was to take.
        chains: Indices of the chains that were lost by then.
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
