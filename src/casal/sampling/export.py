"""Results for other tools: a small table of means with their errors, and ArviZ, which is imported on use."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, TypeAlias

import torch
from torch import Tensor

from casal.constraints import Constraint
from casal.diagnostics import Lineage, Mixing, mixing
from casal.errors import MissingExtraError, SettingError, ShapeError, missing_extra
from casal.methods import systematic
from casal.sampling.certificate import Certificate
from casal.store import make_tree
from casal.streams import stream

MOST_ROWS = 20
"""Rows that are shown; the table holds all."""

QUANTILES = (0.05, 0.95)

BY_NAME = "summary takes functions by name, such as {'mass': lambda z: z.sum(1)}"

Function: TypeAlias = Callable[[Tensor], Tensor]


@dataclass(frozen=True, repr=False)
class Summary:
    """Means, errors, spreads and quantiles of functions of the samples.

    Attributes:
        names: One for each row.
        columns: Name to numbers (rows,): "mean", "error" (standard error of the mean, with weights and shared ancestors
            counted), "sd", "5 %", "95 %"; and "R-hat" and "ESS" where there are draws along independent chains.
        note: What else a reader should know.
    """

    names: tuple[str, ...]
    columns: Mapping[str, Tensor]
    note: str = ""

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, column: str) -> Tensor:
        if column not in self.columns:
            raise KeyError(f"no column {column!r}; there are {', '.join(self.columns)}")
        return self.columns[column]

    def cells(self) -> list[list[str]]:
        """The table in words, the heads first; of a long one the first and the last rows."""
        whole = [[name, *(f"{float(c[k]):.4g}" for c in self.columns.values())] for k, name in enumerate(self.names)]
        if len(whole) > MOST_ROWS:
            ends = MOST_ROWS // 2
            whole = [*whole[:ends], ["...", *[""] * len(self.columns)], *whole[-ends:]]
        return [["", *self.columns], *whole]

    def __str__(self) -> str:
        rows = self.cells()
        width = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
        lines = [
            "  ".join([row[0].ljust(width[0]), *(cell.rjust(w) for cell, w in zip(row[1:], width[1:], strict=True))])
            for row in rows
        ]
        return "\n".join([line.rstrip() for line in lines] + ([self.note] if self.note else []))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_table(self.cells(), self.note)


def short(number: float) -> str:
    """A count in three digits, or as many as it has before the point: 0.25, 43, 304."""
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}"


def html_table(rows: Sequence[Sequence[str]], note: str = "", *, head: bool = True) -> str:
    """Cells as an HTML table, all text escaped."""
    parts = []
    for number, row in enumerate(rows):
        kind = "th" if head and number == 0 else "td"
        first, *rest = (escape(cell) for cell in row)
        cells = "".join(f'<{kind} style="text-align:{"right" if head else "left"}">{cell}</{kind}>' for cell in rest)
        parts.append(f'<tr><th style="text-align:left">{first}</th>{cells}</tr>')
    below = f"<p>{escape(note)}</p>" if note else ""
    return f"<table>{''.join(parts)}</table>{below}"


def summarise(
    samples: Tensor,
    weights: Tensor,
    ancestors: Tensor,
    functions: Mapping[str, Function] | Sequence[Function] | None,
    draws: Tensor | None,
) -> Summary:
    """The table of ``SampleResult.summary``.

    Args:
        samples: (n, *event).
        weights: (n,).
        ancestors: (n,).
        functions: By name; None for every coordinate.
        draws: (chains, draws, *event) of chains that never met; None if there are none.
    """
    given = _named(functions)
    found = {name: _values(name, f, samples) for name, f in given.items()}
    names = [row for name, part in found.items() for row in _rows(name, part, samples, functions is None)]
    values = _side_by_side(found)
    lineage = Lineage(weights, ancestors)
    mean, error = lineage.estimate(values)
    unbiased = 1.0 - float(lineage.weights.square().sum())
    spread = (lineage.weights @ (values - mean).square() / max(unbiased, torch.finfo(torch.float64).tiny)).sqrt()
    if lineage.ancestors < 2:
        error = torch.full_like(error, math.nan)  # one observation has no spread
    columns = {"mean": mean, "error": error, "sd": spread if unbiased > 0 else torch.full_like(mean, math.nan)}
    for share, found in zip(QUANTILES, quantiles(values, lineage.weights, QUANTILES), strict=True):
        columns[f"{100 * share:.0f} %"] = found
    known: Mixing | None = None
    if draws is not None and len(draws) > 1:
        many = draws.flatten(0, 1)
        flat = _side_by_side({name: _values(name, f, many) for name, f in given.items()})
        known = mixing(flat.reshape(*draws.shape[:2], -1))
    note = ""
    if known is not None and draws is not None:
        columns["R-hat"], columns["ESS"] = known
        note = f"R-hat and ESS from {draws.shape[1]} draws of each of {len(draws)} chains; the rest from the last draw"
    return Summary(tuple(names), columns, note)


def quantiles(values: Tensor, weights: Tensor, shares: Sequence[float]) -> Tensor:
    """(len(shares), k): the smallest value whose weight, with that of all smaller ones, reaches a share.

    >>> quantiles(torch.tensor([[3.0], [1.0], [2.0]]), torch.tensor([0.2, 0.5, 0.3]), (0.5, 0.6)).flatten().tolist()
    [1.0, 2.0]
    """
    ordered, order = values.sort(0)
    reached = weights[order].cumsum(0)
    last = len(values) - 1
    rows = [(reached < share * (1.0 - 1e-12)).sum(0).clamp_max(last) for share in shares]
    return torch.stack([ordered.gather(0, row[None])[0] for row in rows])


def _coordinates(z: Tensor) -> Tensor:
    return z.flatten(1)


def _named(functions: Mapping[str, Function] | Sequence[Function] | None) -> dict[str, Function]:
    if functions is None:
        return {"z": _coordinates}
    if isinstance(functions, Mapping):
        named = {str(name): f for name, f in functions.items()}
    elif isinstance(functions, str) or not isinstance(functions, Callable | Sequence):  # type: ignore[arg-type]
        raise SettingError(f"{BY_NAME}, got {functions!r}")
    else:
        listed = [functions] if callable(functions) else list(functions)
        named = {getattr(f, "__name__", type(f).__name__): f for f in listed}
        if len(named) < len(listed) or "<lambda>" in named:
            raise SettingError(
                "functions in a list go by their names, which must differ; give lambdas as a mapping, such as "
                "result.summary({'mass': lambda z: z.sum(1)})"
            )
    if not named or not all(callable(f) for f in named.values()):
        raise SettingError(f"{BY_NAME}; or nothing, for every coordinate")
    return named


def _values(name: str, f: Function, samples: Tensor) -> Tensor:
    """What a function returns: (n,) or (n, k)."""
    n, found = len(samples), f(samples)
    if not isinstance(found, Tensor) or found.ndim not in (1, 2) or len(found) != n:
        got = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise ShapeError(f"{name} must return a tensor ({n},) or ({n}, k) for {n} samples, got {got}")
    return found


def _side_by_side(parts: Mapping[str, Tensor]) -> Tensor:
    """(n, rows) float64."""
    return torch.cat([part.reshape(len(part), -1).to(torch.float64) for part in parts.values()], dim=1)


def _rows(name: str, values: Tensor, samples: Tensor, coordinates: bool) -> list[str]:
    """Names of the numbers that a function returns; coordinates by their place in the event."""
    if coordinates:
        places = itertools.product(*(range(size) for size in samples.shape[1:]))
        return [f"z[{', '.join(map(str, place))}]" for place in places]
    return [name] if values.ndim == 1 else [f"{name}[{k}]" for k in range(values.shape[1])]


# ------------------------------------------------------------------------------------------------ ArviZ


def inference_data(
    samples: Tensor, weights: Tensor, certificate: Certificate, draws: Tensor | None, constraint: Constraint | None
) -> Any:
    """The ``InferenceData`` of ``SampleResult.to_arviz``.

    Args:
        samples: (n, *event).
        weights: (n,), summing to one.
        certificate: Of the samples.
        draws: (chains, draws, *event) along independent chains; None if there are none.
        constraint: The set, by which draws are measured; None if it is not known.
    """
    arviz = arviz_module()
    if draws is not None:
        arrays = {"posterior/samples": draws}
        if constraint is not None:
            each = [constraint.violation(draw) for draw in draws.unbind(1)]
            arrays["sample_stats/violation"] = torch.stack(each, dim=1)
        note = f"{draws.shape[1]} draws along each of {len(draws)} independent chains, after the first half of the run"
    else:
        note = f"all {len(samples)} samples as draws of one chain, which says nothing of its mixing"
        violation = certificate.violation
        if bool((weights - weights[0]).abs().max() > 1e-9 * weights[0]):
            index = systematic(weights, stream(0, "resampling", device=weights.device))
            samples, violation = samples[index], violation[index]
            note += "; resampled to equal weights, so that some are copies"
        note += "; errors that know of weights and ancestors are those of result.summary()"
        arrays = {"posterior/samples": samples[None], "sample_stats/violation": violation[None]}
    tree = make_tree(arrays, {"posterior": {"note": note, "inference_library": "casal"}})
    return arviz.InferenceData(**{name: group.to_dataset() for name, group in tree.children.items()})


def arviz_module() -> Any:
    """ArviZ before version 1, or an error that says how to get it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it announces its next version at every import
            import arviz
    except ImportError as error:
        raise MissingExtraError(missing_extra("result.to_arviz()", "arviz", "arviz < 1")) from error
    if not hasattr(arviz, "InferenceData"):
        raise MissingExtraError(
            f"ArviZ {getattr(arviz, '__version__', '')} takes xarray trees as they are: give it result.to_xarray()"
        )
    return arviz
