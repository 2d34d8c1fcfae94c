"""Sets: what casal certifies and projects, against definitions in long double.

certified      a point with violation <= 1e-8 is in the set by its definition, row by row
refused        a point in the set up to the rounding of each row's terms has violation <= 1e-8
violation      is >= 0, never nan, and finite for finite points
projection     is finite, in the set where flagged as converged, and stays where it is if projected again
nearest        <z - p, q - p> <= 0 for other points q of a convex set; |z - p| <= |z - q| for an exact projection
raises         nothing but a CasalError, and no InfeasibleSet, since every set holds a point
"""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from casal.constraints import Budget, Constraint, Projection
from casal.errors import CasalError, InfeasibleSet
from fuzz.definitions import EPSILON, Grant, judge, wide
from fuzz.limits import TooLong, limit
from fuzz.making import IMPORTS, Numbers, Scene, build, scene, show
from fuzz.report import Failure, Report

CHAINS = 4
"""Points in a batch, and chains of a set with parameters for each."""

CERTIFIED = 1e-8
"""Violation up to which a point counts as feasible."""

PROMISED = Grant(4 * CERTIFIED, 64 * EPSILON)
"""What a certified point may be off by."""

ROUNDED = Grant(0.0, 2 * EPSILON)
"""Points off by less are in the set as well as float64 can tell."""

FAR = Grant(0.01, 64 * EPSILON)
NEAREST = 1e-6
BUDGET = Budget(1e-12, 50)
"""Few iterations: where they do not converge, only the certificate is tested."""
LONGEST = 5
"""Seconds for one set; some iterate long, and others are worth a try too."""

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32)


class Batch(NamedTuple):
    name: str
    points: Tensor


class Trial:
    """The checks of one set; ``report`` holds what they found."""

    def __init__(self, seed: int, number: int) -> None:
        self.command = f"python -m fuzz --only sets --seed {seed} --trial {number}"
        self.rng = np.random.default_rng([seed, 1, number])
        self.report = Report()
        self.scene: Scene = scene(self.rng, CHAINS)
        made, place, units = self.scene
        self.report.count("sets", "trials")
        self.report.count("set", *dict.fromkeys(made.kinds))
        self.report.count("unit", units)
        self.report.count("chains", "common" if place.chains == 1 else "each its own")

    @property
    def closed_form(self) -> bool:
        """Whether the projection is found at once, so that the trial is a matter of milliseconds."""
        try:
            return build(self.scene.made.text).exact
        except CasalError:
            return True

    def run(self) -> Report:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                with limit(LONGEST):
                    self._run()
            except TooLong:
                self.report.count("sets", f"given up after {LONGEST} s")
        return self.report

    def _run(self) -> None:
        made, place, _ = self.scene
        try:
            self.set: Constraint = build(made.text)
            self.set.validate(place.event)
        except CasalError as error:
            holds = judge(made.truth, place.anchor, ROUNDED).score
            self.report.count("operation", "construction declined")
            if isinstance(error, InfeasibleSet) and bool((holds <= 1).all()):
                self._fail("raises InfeasibleSet", self._kinds(), str(error), f"{IMPORTS}; {made.text}")
            return
        except Exception as error:
            self._fail(f"raises {type(error).__name__}", self._kinds(), _last_line(error), f"{IMPORTS}; {made.text}")
            return
        self.report.count("operation", "construction")
        self.members: list[Numbers] = [np.broadcast_to(place.anchor, (CHAINS, place.size))]
        given = list(self._batches())
        few = given if self.set.exact else given[:2] + given[-1:]
        found = [self._project(batch) if any(batch is one for one in few) else None for batch in given]
        for batch in given:
            self._check_violation(batch)
        projected = [Batch(f"projection of {batch.name}", p.point) for batch, p in zip(given, found, strict=True) if p]
        for batch in projected:
            self._check_violation(batch)
        for batch in self._pushed([given[0], *projected]):
            self._check_violation(batch)
        for batch, projection in zip(given, found, strict=True):
            if projection:
                self._check_nearest(batch, projection)
        self._check_narrow(few)

    # -------------------------------------------------------------- points

    def _batches(self) -> Iterator[Batch]:
        """Points to try, (CHAINS, *event) float64."""
        rng, (made, place, _) = self.rng, self.scene
        shape = (CHAINS, place.size)
        yield self._batch("anchor", np.broadcast_to(place.anchor, shape))
        yield self._batch("random", place.anchor + place.units * rng.normal(size=shape) * 10.0 ** rng.integers(-1, 3))
        yield self._batch("mixed", place.units * rng.normal(size=shape) * 10.0 ** rng.integers(-12, 13, size=shape))
        extra = int(rng.integers(5))
        if extra == 0:
            yield self._batch("huge", rng.normal(size=shape) * 1e150)
        if extra == 1:
            yield self._batch("tiny", rng.normal(size=shape) * 1e-150)
        if extra == 2:
            yield self._batch("zeros", np.zeros(shape))
        if extra == 3:
            yield self._batch(
                "one huge", np.where(np.arange(place.size) == rng.integers(place.size), 1e10, 1.0) * place.anchor
            )
        if made.centres:
            yield self._batch("centre", np.broadcast_to(made.centres[int(rng.integers(len(made.centres)))], shape))

    def _pushed(self, batches: list[Batch]) -> Iterator[Batch]:
        """Points of the set with one coordinate moved, so that few rows break; the others perhaps 1e10 times larger."""
        rng, place = self.rng, self.scene.place
        for batch in batches:
            points = _flat(batch.points).copy()
            for i, point in enumerate(points):
                j = int(rng.integers(place.size))
                step = rng.choice([-1.0, 1.0]) * 10.0 ** rng.uniform(-9, 1)
                points[i, j] = point[j] + step * (abs(point[j]) if rng.random() < 0.5 else place.units[j])
                if rng.random() < 0.3:
                    k = int(rng.integers(place.size))
                    points[i, k] *= 1.0 if k == j else 1e10
            yield self._batch(f"{batch.name}, one coordinate moved", points)

    def _batch(self, name: str, points: npt.NDArray[np.float64]) -> Batch:
        points = np.ascontiguousarray(points + np.zeros((CHAINS, self.scene.place.size)))
        return Batch(name, torch.from_numpy(points).reshape(CHAINS, *self.scene.place.event))

    # -------------------------------------------------------------- checks

    def _check_violation(self, batch: Batch) -> None:
        z, truth = batch.points, self.scene.made.truth
        self.report.count("operation", "violation")
        self.report.count("dtype", _name(z.dtype))
        self.report.count("points", batch.name.replace("projection of ", "").split(",")[0])
        try:
            violation = self.set.violation(z).numpy()
        except Exception as error:
            self._fail(
                f"violation raises {type(error).__name__}", self._kinds(), _last_line(error), self._line(z, "violation")
            )
            return
        points = _flat(z)
        promised, rounded = judge(truth, points, PROMISED), judge(truth, points, ROUNDED)
        far = judge(truth, points, FAR)
        self.report.count("oracle", *["in the set"] * int((promised.score <= 1).sum()))
        self.report.count("oracle", *["off by 1 % or more"] * int((far.score > 1).sum()))
        for i, value in enumerate(violation.tolist()):
            line = self._line(z, "violation", i)
            kind = str(promised.name[i]).split(":")[0]
            if not value >= 0:
                self._fail("violation is negative or nan", self._kinds(), f"violation {value}", line)
            elif value == np.inf and promised.excess[i] < 1e290 and not self._overflows(points[i]):
                self._fail("violation is infinite", self._kinds(), f"violation {value} at a finite point", line)
            elif value <= CERTIFIED and promised.score[i] > 1:
                share = float(promised.excess[i] / promised.unit[i]) if promised.unit[i] > 0 else np.inf
                message = (
                    f"violation {value:.3g}, but {promised.name[i]} is off by {float(promised.excess[i]):.3g}, "
                    f"{share:.3g} of its unit ({batch.name})"
                )
                self._fail("certified off the set", f"{kind}, units {self._unit_word()}", message, line)
            elif value > CERTIFIED and rounded.score[i] <= 1:
                message = f"violation {value:.3g} at a point of the set to rounding ({batch.name})"
                self._fail("refused on the set", f"{self._kinds()}, units {self._unit_word()}", message, line)

    def _overflows(self, point: Numbers) -> bool:
        """Whether a row may: a square of 1e150 in units of 1e-6."""
        squares = {"Implicit", "MassEnergy", "MassEnergyBox", "ObservedMassEnergy"}
        return bool(squares & set(self.scene.made.kinds)) and float(np.abs(point).max()) > 1e100

    def _project(self, batch: Batch) -> Projection | None:
        """Solve, check what is checked point by point, and keep the points that are in the set."""
        z = batch.points
        found = self._solve(z)
        if found is None:
            return None
        p = found.point
        if not p.is_floating_point() or not bool(torch.isfinite(p).all()):
            self._fail("projection is not finite", self._kinds(), f"{p.tolist()}", self._line(z, "project"))
            return None
        good = self._check_feasible(batch, found)
        again = self._solve(p) if bool(good.any()) else None
        if again is not None:
            size = np.maximum(np.abs(_flat(p)), np.abs(self.members[0])).max(1)  # terms that cancel near zero
            moved = np.abs(_flat(again.point) - _flat(p)).max(1)
            for i in np.flatnonzero((moved > NEAREST * size) & good & again.converged.numpy()):
                self._fail(
                    "projection moves again",
                    self._kinds(),
                    f"by {moved[i] / size[i]:.3g} of its size",
                    self._line(z, "project", int(i)),
                )
        anchor = self.members[0]
        self.members.append(np.where(good[:, None], _flat(p), anchor))
        return found

    def _solve(self, z: Tensor) -> Projection | None:
        self.report.count("operation", "projection")
        try:
            found = self.set.solve(z, budget=BUDGET)
        except InfeasibleSet as error:
            self._fail("raises InfeasibleSet", self._kinds(), str(error), self._line(z, "project"))
            return None
        except CasalError:
            self.report.count("operation", "projection declined")
            return None
        except Exception as error:
            self._fail(
                f"project raises {type(error).__name__}", self._kinds(), _last_line(error), self._line(z, "project")
            )
            return None
        self.report.count("operation", *["projection not converged"] * int((~found.converged).any()))
        return found

    def _check_feasible(self, batch: Batch, found: Projection) -> npt.NDArray[np.bool_]:
        """Points flagged as converged must be in the set, up to the rounding of their dtype."""
        p, converged = found.point, found.converged.numpy()
        rounding = torch.finfo(p.dtype).eps
        verdict = judge(self.scene.made.truth, _flat(p), Grant(PROMISED.tolerance, 64 * rounding))
        for i in np.flatnonzero(converged & (verdict.score > 1)):
            kind = str(verdict.name[i]).split(":")[0]
            excess, unit = float(verdict.excess[i]), float(verdict.unit[i])
            message = f"{verdict.name[i]} is off by {excess:.3g}, unit {unit:.3g} ({batch.name})"
            self._fail(
                "converged projection off the set",
                f"{kind}, units {self._unit_word()}",
                message,
                self._line(batch.points, "project", int(i)),
            )
        good: npt.NDArray[np.bool_] = converged & (verdict.score <= 1)
        return good

    def _check_nearest(self, batch: Batch, found: Projection) -> None:
        z, p = wide(_flat(batch.points)), wide(_flat(found.point))
        for q in map(wide, self.members):
            reach, size = _length(z - p), _length(z) + _length(p) + _length(q)
            if self.set.convex:
                off = ((z - p) * (q - p)).sum(1) > NEAREST * size * (reach + _length(q - p))
            elif self.set.exact:
                off = reach > _length(z - q) + NEAREST * size
            else:
                return
            for i in np.flatnonzero(off & found.converged.numpy()):
                message = f"{show(q[i])} is nearer ({batch.name})"
                self._fail(
                    "projection is not the nearest",
                    f"{self._kinds()}, units {self._unit_word()}",
                    message,
                    self._line(batch.points, "project", int(i)),
                )
                return

    def _check_narrow(self, batches: list[Batch]) -> None:
        """Other dtypes: certificates of what the dtype can hold, projections in the set up to its rounding."""
        dtype = DTYPES[int(self.rng.integers(len(DTYPES)))]
        top = 1e4 if dtype in (torch.float16, torch.bfloat16) else 1e9 if dtype == torch.int32 else 1e15
        sizes = np.concatenate([*self.members, self.scene.place.units[None]])
        small = 1e-2 if dtype == torch.float16 else 1e-12
        if float(np.abs(sizes).max()) > top or float(self.scene.place.units.min()) < small:
            return
        for batch in batches:
            if float(batch.points.abs().max()) > top:
                continue
            narrow = Batch(batch.name, batch.points.to(dtype))
            self._check_violation(narrow)
            found = self._solve(narrow.points)
            if found is not None and not bool(torch.isfinite(found.point).all()):
                if dtype != torch.float16:  # which ends at 65504
                    self._fail("projection is not finite", self._kinds(), "", self._line(narrow.points, "project"))
            elif found is not None and found.point.is_floating_point():
                self._check_feasible(narrow, found)
                self._check_violation(Batch(f"projection of {batch.name}", found.point))
            elif found is not None:
                verdict = judge(self.scene.made.truth, _flat(found.point), PROMISED)
                if bool(((verdict.score > 1) & found.converged.numpy()).any()):
                    self._fail(
                        "project of integers is off the set",
                        "any set",
                        f"{found.point.tolist()}",
                        self._line(narrow.points, "project"),
                    )

    # -------------------------------------------------------------- words

    def _kinds(self) -> str:
        """The set, or the operations it is made with."""
        kinds = set(self.scene.made.kinds)
        if len(self.scene.made.kinds) <= 2:
            return "+".join(sorted(kinds))
        return "nested with " + " ".join(sorted(kinds & {"&", "|", "Product", "through", "shifted", "scaled"}))

    def _unit_word(self) -> str:
        return {"one": "all 1", "common": "all the same", "own": "mixed", "state": "mixed"}[self.scene.units]

    def _line(self, z: Tensor, action: str, i: int | None = None) -> str:
        """Python that does it again; for one point, where parameters are common to all chains."""
        if i is not None and self.scene.place.chains == 1:
            z = z[i : i + 1]
        values = repr(z.tolist())
        return f"{IMPORTS}; print(({self.scene.made.text}).{action}(torch.tensor({values}, dtype={z.dtype})))"

    def _fail(self, check: str, where: str, message: str, line: str) -> None:
        self.report.failures.append(Failure(check, where, message, line, self.command))


def _flat(z: Tensor) -> npt.NDArray[np.float64]:
    flat: npt.NDArray[np.float64] = z.to(torch.float64).flatten(1).numpy()
    return flat


def _length(v: Any) -> Any:
    return np.sqrt((v * v).sum(1))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _last_line(error: Exception) -> str:
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({place.name}, line {place.lineno})"


def trial(seed: int, number: int) -> Report:
    """One random set with all its checks."""
    return Trial(seed, number).run()
