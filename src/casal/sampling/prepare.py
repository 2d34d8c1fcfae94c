"""From a call to a run before its first step: check, measure, choose."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from casal.constraints import Constraint, geometry
from casal.errors import SettingError
from casal.methods import Method
from casal.sampling.adapt import adapt
from casal.sampling.coordinates import coordinates
from casal.sampling.inspect import check_call, place_of, starting_points, try_out
from casal.sampling.resume import StoreKeeper
from casal.sampling.run import Options, Prepared, batch_size
from casal.targets import Target, first_order

FIRST_ORDER_NOTE = (
    "the steps of the model look back at earlier estimates; this method took steps of first order between the same "
    "noise levels instead"
)


def prepare(target: Target, constraint: Constraint, method: Method[Any] | str, n: int, options: Options) -> Prepared:
    """Check what was asked for on a few chains, choose what was left open, and work out the first shared numbers.

    Raises:
        CasalError: Settings, shapes or sets that cannot work.
    """
    check_call(target, constraint, method, n, options)
    target = target.on(place_of(target, options))
    given, how = target, options.run
    if not (isinstance(method, Method) and method.remembers):
        target = first_order(target)
    tried = try_out(target, constraint, n, options)

    def points(chains: Tensor, generator: torch.Generator) -> Tensor:
        init = target.init
        some = replace(target.take(chains), init=init[chains.to(init.device)] if isinstance(init, Tensor) else init)
        return starting_points(some, 0, len(chains), generator, how.dtype)

    ready = adapt(tried.context, method, n, points, seed=options.seed, check=options.check is not False)
    context, chosen = ready.context, ready.method
    if chosen.promises_distribution:
        geometry.check_dimensions(constraint, tried.event)
    inside = coordinates(context, chosen, tried.decoder)
    control = chosen.control(inside.context, n)
    steps = chosen.steps(inside.context, control)
    if how.snapshots > steps:
        raise SettingError(f"snapshots = {how.snapshots} steps apart, but the run has {steps}; give a smaller number")
    stored = None if how.store is None or how.batch is not None else StoreKeeper.batch_of(how.store, n)
    return Prepared(
        target=context.target,
        method=chosen,
        n=n,
        constraint=constraint,
        context=context,
        inside=inside,
        control=control,
        steps=steps,
        batch=min(how.batch or stored or batch_size(n, context, tried.event), n),
        options=options,
        points=partial(starting_points, dtype=how.dtype),
        offset=tried.offset,
        pilot=ready.pilot,
        choice=ready.choice,
        notes=ready.notes + ((FIRST_ORDER_NOTE,) if target is not given else ()),
        objections=ready.objections,
        checked=ready.checked,
    )
