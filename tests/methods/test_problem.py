"""What a function of the user's returns is checked at every call, and its argument stays as it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import casal
from casal.decoders import Decoder, Identity
from casal.errors import DtypeError, SettingError, ShapeError
from casal.methods import Problem
from casal.targets import Target

X = torch.linspace(-1.0, 1.0, 12, dtype=torch.float64).reshape(4, 3)
T = torch.tensor(2.0, dtype=torch.float64)


def good(x: Tensor, *_: Tensor) -> Tensor:
    return -x


def problem(*, decoder: Decoder | None = None, **functions: Callable[..., Any]) -> Problem:
    table = casal.langevin(good, steps=3, step_size=0.1, init=X).table
    target = Target(functions.pop("score", good), table, X, **functions, name="model")
    return Problem(target, casal.Sphere(1.0), decoder or Identity(), X[:0])


def scores(f: Callable[..., Any]) -> Tensor:
    return problem(score=f).score(X, T)


def denoised(f: Callable[..., Any]) -> Tensor:
    return problem(denoise=f).denoise(X, 2.0)


@pytest.mark.parametrize(("call", "name"), [(scores, "gradient"), (denoised, "denoiser")])
def test_scores_and_denoisers_are_as_their_argument(call: Callable[..., Tensor], name: str) -> None:
    assert torch.equal(call(good), -X)
    wrong: list[Callable[..., Any]] = [lambda x, t: x.sum(1, keepdim=True), lambda x, t: x[0], lambda x, t: x.T]
    for f in wrong:
        with pytest.raises(ShapeError, match=rf"the {name} of model has shape .* points of shape \(4, 3\) \(t = 2\)"):
            call(f)
    with pytest.raises(ShapeError, match="has shape ndarray"):
        call(lambda x, t: x.numpy())
    with pytest.raises(DtypeError, match=rf"the {name} of model is torch.float32 .* are torch.float64"):
        call(lambda x, t: x.float())


def test_a_potential_is_one_number_a_chain() -> None:
    f = problem(potential=lambda x: x.square().sum(1, keepdim=True))
    assert torch.equal(f.potential(X), X.square().sum(1)) and torch.equal(f.log_density(X), -X.square().sum(1))
    for wrong in (torch.square, torch.sum):
        with pytest.raises(ShapeError, match=r"the potential of model is \(.*; give a tensor \(4,\)"):
            problem(potential=wrong).log_density(X)


class Shrinks(Identity):
    """Writes into its argument."""

    identity = False

    def __call__(self, x: Tensor) -> Tensor:
        return x.clamp_(-0.5, 0.5)


EDITS: dict[str, Callable[[Tensor], Tensor]] = {
    "the gradient of model": lambda x: problem(score=lambda x, t: x.clamp_(-5, 5) * -1.0).score(x, T),
    "the denoiser of model": lambda x: problem(denoise=lambda x, s: x[:2].mul_(0.5).repeat(2, 1)).denoise(x, 1.0),
    "the potential of model": lambda x: problem(potential=lambda x: x.square_().sum(1)).log_density(x),
    "the decoder": lambda x: problem(decoder=Shrinks()).decode(x),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_argument_that_is_edited_in_place_is_seen(name: str) -> None:
    """Also where the numbers stay the same this time."""
    with pytest.raises(SettingError, match=f"{name} edits its argument in place; return a new tensor"):
        EDITS[name](X.clone())


def test_inference_mode_has_no_versions_to_look_at() -> None:
    with torch.inference_mode():
        assert torch.equal(problem().score(X * 1.0, T), -X)


def test_factorisations_are_those_of_the_table_the_decoder_and_the_dtype() -> None:
    """Kept where these are the same, made anew where one of them is another."""
    rows = casal.Linear(torch.tensor([[1.0, 2.0, 0.0]], dtype=torch.float64))
    one = problem(decoder=rows)
    _ = one.gram, one.diagonal, one.noiseless
    stretch = torch.tensor([1.0, 4.0, 9.0], dtype=torch.float64)
    table = casal.langevin(good, steps=3, step_size=0.1, init=X, preconditioner=stretch).table
    other = one.replace(target=replace(one.target, table=table))
    assert one.diagonal is None and other.diagonal is not None and torch.equal(other.diagonal, stretch)
    assert other.gram is not one.gram
    same = one.replace(target=replace(one.target, name="same table"), first=2)
    assert same.gram is one.gram and same.first == 2
    assert one.replace(decoder=Identity()).gram is not one.gram
    assert one.replace(like=X[:0].float()).gram is not one.gram
