"""Samples as an ``InferenceData`` of ArviZ, which is imported on use."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from casal.constraints import Constraint
from casal.errors import MissingExtraError, missing_extra
from casal.methods import systematic
from casal.sampling.certificate import Certificate
from casal.sampling.tiles import generator
from casal.store import make_tree

RESAMPLING_STREAM = 1 << 42
"""Random stream of the resampling; no tile of a run comes so far."""


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
            index = systematic(weights, generator(0, RESAMPLING_STREAM, weights.device))
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
