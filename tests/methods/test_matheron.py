"""Matheron's rule at every noise level: closed forms of Gaussian models, and what breaks them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import casal
from casal.errors import SettingError
from casal.methods import Problem
from casal.methods.equations import equations_of
from casal.methods.matheron import LevelRow, MatheronState, NearErrors, asymmetry, spread

D, M = 12, 4


def gaussian_model(seed: int = 0, **settings: Any) -> tuple[casal.Target, Tensor, Tensor]:
    """A Gaussian of twelve dimensions, widths .1 to 3, with its exact denoiser: target, mean, covariance."""
    stream = torch.Generator().manual_seed(seed)
    turn = torch.linalg.qr(torch.randn(D, D, generator=stream, dtype=torch.float64))[0]
    width = torch.logspace(-1, 0.5, D, dtype=torch.float64)
    mean, cov = torch.randn(D, generator=stream, dtype=torch.float64), (turn * width**2) @ turn.T

    def denoise(x: Tensor, s: Tensor) -> Tensor:
        gain = torch.linalg.solve(cov + float(s) ** 2 * torch.eye(D, dtype=torch.float64), cov)
        return (mean + (x.double() - mean) @ gain).to(x.dtype)

    sigmas = casal.karras_sigmas(60, 0.01, 60.0)
    return casal.edm(denoise, sigmas, shape=(D,), dtype=torch.float64, **settings), mean, cov


def rows(seed: int = 1) -> tuple[Tensor, Tensor]:
    stream = torch.Generator().manual_seed(seed)
    return (
        torch.randn(M, D, generator=stream, dtype=torch.float64),
        torch.randn(M, generator=stream, dtype=torch.float64),
    )


def conditional(mean: Tensor, cov: Tensor, A: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    gain = torch.linalg.solve(A @ cov @ A.T, A @ cov).T
    return mean + (b - mean @ A.T) @ gain.T, cov - gain @ A @ cov


def whitened(z: Tensor, mean: Tensor, cov: Tensor) -> Tensor:
    """Samples in coordinates in which the exact distribution is standard normal, (n, d - m)."""
    values, vectors = torch.linalg.eigh(cov)
    kept = values > 1e-9
    return (z - mean) @ vectors[:, kept] / values[kept].sqrt()


def z_scores(white: Tensor) -> tuple[float, float]:
    """The largest error of a mean, and of a variance, in standard errors."""
    n = len(white)
    return float(white.mean(0).abs().max() * math.sqrt(n)), float((white.var(0) - 1).abs().max() * math.sqrt(n / 2))


@pytest.mark.parametrize("gain", ["own", "shared", "cg"])
def test_a_gaussian_given_linear_equations_is_exact(gain: str) -> None:
    target, mean, cov = gaussian_model()
    A, b = rows()
    z = casal.sample(target, casal.Affine(A, b), casal.Matheron(gain=gain), 600, seed=2, check=False).samples
    assert float((z @ A.T - b).abs().max()) < 1e-10
    off, wide = z_scores(whitened(z, *conditional(mean, cov, A, b)))
    assert off < 4.5
    assert wide < 5.5  # the free samples' own error, 1 to 2 % of a variance, beside that of 600 draws


def test_a_projection_in_place_of_the_gain_is_seen() -> None:
    target, mean, cov = gaussian_model()
    A, b = rows()
    z = casal.sample(target, casal.Affine(A, b), casal.FinalProjection(), 1500, seed=2, check=False).samples
    off, wide = z_scores(whitened(z, *conditional(mean, cov, A, b)))
    assert off > 20
    assert wide > 20


def test_one_level_is_the_closed_form_for_every_gain() -> None:
    target, _mean, cov = gaussian_model()
    A, b = rows()
    like = torch.zeros(0, D, dtype=torch.float64)
    problem = Problem(target, casal.Affine(A, b), casal.Identity(), like)
    found, s = equations_of(problem), 0.7
    x, clean = (torch.randn(9, D, generator=torch.Generator().manual_seed(k), dtype=torch.float64) for k in (3, 4))
    S = s**2 * torch.linalg.solve(cov + s**2 * torch.eye(D, dtype=torch.float64), cov)
    exact = clean + (b - clean @ A.T) @ torch.linalg.solve(A @ S @ A.T, A @ S)
    row, none = LevelRow(s, None, False, True), torch.zeros(9, dtype=torch.long)
    zero, estimate = torch.zeros_like(x), problem.denoise(x, s)
    state = MatheronState(x, x, zero, clean, estimate, x[:, None][:, :0], none, none, clean, clean[:, 0], x[:, 0])
    method, stream = casal.Matheron(), torch.Generator().manual_seed(0)
    for gain in ("own", "cg", "shared"):
        control, asked = method.control(problem, 9)._replace(gain=gain), state
        if gain == "shared":
            asked, control, _ = method.choose(row, problem, state, control, stream)
            asked = asked._replace(clean=clean)
        asked = method.ask(gain, found, problem, asked, row, x)
        moved, _, _ = method.move(row, problem, asked, control, stream)
        torch.testing.assert_close(moved.clean, exact, atol=1e-7, rtol=0)


def test_every_chain_may_have_its_own_value() -> None:
    target, mean, cov = gaussian_model()
    A, _ = rows()
    n = 500
    own = torch.distributions.MultivariateNormal(mean, cov)
    torch.manual_seed(5)
    truth = own.sample((n,))
    result = casal.sample(
        target, casal.Affine(A, casal.PerChain(truth @ A.T)), casal.Matheron(), n, seed=6, check=False
    )
    # x given the value of a draw of the model is again a draw of the model
    off, wide = z_scores(whitened(result.samples, mean, cov))
    assert off < 4.5
    assert wide < 5.5


def test_the_spread_is_that_of_the_gaussian_given_its_condition() -> None:
    """Errors at a level s have S = v s^2 / (v + s^2) along a direction of variance v: v comes back, whatever s."""
    n, stream = 4000, torch.Generator().manual_seed(1)
    target, means, c = conditional_model(n)
    like, widest = torch.zeros(0, D, dtype=torch.float64), float(c[-1]) ** 0.5
    free = means + c.sqrt() * torch.randn(n, D, generator=stream, dtype=torch.float64)
    problem = Problem(target, casal.Sphere(1.0), casal.Identity(), like, batch=300)
    for level in (widest, 4 * widest, 100 * widest):
        assert abs(spread(problem, free, level, stream) / widest - 1) < 0.08  # 4000 draws: .03 at most at s = sd
    alone = problem.take(slice(0, 1))
    trace = math.sqrt(float((free[:1] - means[:1]).square().sum()))
    assert abs(spread(alone, free[:1], 80.0, stream) / trace - 1) < 0.2  # of one chain its own length
    plain, _, cov = gaussian_model()
    every = torch.randn(n, D, generator=stream, dtype=torch.float64) @ torch.linalg.cholesky(cov).T
    problem = Problem(plain, casal.Sphere(1.0), casal.Identity(), like)
    assert abs(spread(problem, every, 80.0, stream) / float(torch.linalg.eigvalsh(cov)[-1]) ** 0.5 - 1) < 0.05
    assert problem.usage.scores == 0


def conditional_model(n: int, rough: float = 0.0) -> tuple[casal.Target, Tensor, Tensor]:
    """Chains with far means of their own, m_i + N(0, diag c); above s = 1 the denoiser has an error of its own."""
    stream = torch.Generator().manual_seed(8)
    means = 50.0 * torch.randn(n, D, generator=stream, dtype=torch.float64)
    c = torch.logspace(-2, -0.5, D, dtype=torch.float64)

    def denoise(x: Tensor, s: Tensor, *, at: Tensor) -> Tensor:
        s = s.double().reshape(-1, *[1] * (x.ndim - 1)) if s.ndim else s.double()
        away = (x - at) / (c + s**2).sqrt()
        wrong = rough * torch.sin(3 * away.roll(1, 1)) * (s > 3.0)
        return at + c / (c + s**2) * (x - at) + wrong

    sigmas = casal.karras_sigmas(40, 0.01, 80.0)
    return casal.edm(denoise, sigmas, shape=(D,), dtype=torch.float64, condition={"at": means}), means, c


@pytest.mark.parametrize("rough", [0.0, 0.3])
def test_every_chain_may_have_its_own_condition(rough: float) -> None:
    """Levels follow from the spread given the condition, not from that of all chains, which is 50 times as large."""
    n = 400
    target, means, c = conditional_model(n, rough)
    truth = means + c.sqrt() * torch.randn(n, D, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    A = torch.ones(1, D, dtype=torch.float64)
    result = casal.sample(
        target, casal.Affine(A, casal.PerChain(truth @ A.T)), casal.Matheron(), n, seed=6, check=False
    )
    assert float(result.trace["first level"].max()) < 3.0
    off, wide = z_scores((result.samples - means) / c.sqrt())  # given the sum of a draw, a draw again
    assert off < 4.5
    assert wide < 5.5


def test_errors_along_a_row_bound_its_variance_from_below() -> None:
    """Of errors N(0, S) the bound is above a^T S a once in a thousand times, and below it by a known factor."""
    stream = torch.Generator().manual_seed(3)
    variance = torch.tensor([4.0, 0.25], dtype=torch.float64)
    every = torch.randn(16000, 2, generator=stream, dtype=torch.float64) * variance.sqrt()
    errors = NearErrors(every, torch.arange(16000).reshape(1000, 16))
    least = errors.least(torch.eye(2, dtype=torch.float64)[None])
    ratio = least.diagonal(dim1=1, dim2=2) / variance
    assert int((ratio > 1).sum()) <= 8  # 2 of 2000 expected
    assert abs(float(ratio.mean()) - 16 / 39.25) < 0.01  # chi^2 of 16, quantile .999
    assert bool((torch.linalg.eigvalsh(least) > -1e-12).all())


def test_a_derivative_below_the_errors_is_raised_and_the_row_is_met() -> None:
    """The network says that nothing varies along a row while its errors do: S' = S + R a a^T, and A x0 = b."""
    stream = torch.Generator().manual_seed(3)
    a = torch.nn.functional.normalize(torch.randn(1, D, generator=stream, dtype=torch.float64), dim=1)
    across = torch.randn(5, 1, D, generator=stream, dtype=torch.float64)
    across = across - (across @ a.T + 1e-9) * a  # a^T S a = -1e-9
    errors = NearErrors(torch.randn(16, D, generator=stream, dtype=torch.float64), torch.arange(16).repeat(5, 1))
    filled, inverse = casal.Matheron()._filled(a, across, errors)
    least = errors.least(a)
    torch.testing.assert_close(inverse, 1 / least)
    torch.testing.assert_close(a @ filled.mT @ inverse, torch.ones(5, 1, 1, dtype=torch.float64))
    torch.testing.assert_close(filled, across + (least + 1e-9) * a)


def test_a_network_that_is_not_exact_ends_as_its_own_sampler_ends() -> None:
    """With D(x) itself at the last level; else with an error added."""
    target, _mean, _cov = gaussian_model()
    A, b = rows()
    problem = Problem(target, casal.Affine(A, b), casal.Identity(), torch.zeros(0, D, dtype=torch.float64))
    x = torch.randn(9, D, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    none = torch.zeros(9, dtype=torch.long)
    estimate, probe = problem.denoise(x, 0.1), x[:, None][:, :0]
    state = MatheronState(x, x, torch.ones_like(x), x, estimate, probe, none, none, x, x[:, 0], x[:, 0])
    method, stream = casal.Matheron(), torch.Generator().manual_seed(0)
    for exact, last, size in ((False, True, 0.0), (False, False, 1.0), (True, True, 1.0)):
        control = method.control(problem, 9)._replace(exact=exact)
        found = method.choose(LevelRow(0.1, None, False, last), problem, state, control, stream)[0]
        torch.testing.assert_close((found.clean - found.estimate).abs(), torch.full_like(x, size))


def turned_model(turn: float) -> casal.Target:
    """The Gaussian of ``gaussian_model`` about zero, its derivative turned: a network that is not exact."""
    _target, _mean, cov = gaussian_model()
    R = torch.randn(D, D, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    R = torch.eye(D, dtype=torch.float64) + turn * (R - R.T)

    def denoise(x: Tensor, s: Tensor) -> Tensor:
        gain = torch.linalg.solve(cov + float(s) ** 2 * torch.eye(D, dtype=torch.float64), cov)
        return x @ gain @ R

    sigmas = casal.karras_sigmas(30, 0.1, 60.0)
    return casal.edm(denoise, sigmas, shape=(D,), dtype=torch.float64, time="scalar")


def test_the_last_level_again_brings_the_estimate_to_the_equations(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network that is not exact ends with D(x), of which the gap falls at each repetition; an exact one ends once."""
    A, b = rows()
    missed = dict[int, float]()
    for ends in (0, 4):
        monkeypatch.setattr("casal.methods.matheron.ENDS", ends)
        found = casal.sample(turned_model(0.03), casal.Affine(A, b), casal.Matheron(levels=20), 48, seed=1, check=False)
        sigma = found.trace["sigma"]
        assert int((sigma == sigma[-1]).sum()) == 1 + ends
        assert len(sigma) <= 20  # the last level may be an early one
        missed[ends] = float((found.state.estimate @ A.T - b).norm(dim=1).median())
    assert missed[4] < 0.1 * missed[0]
    exact = casal.sample(turned_model(0.0), casal.Affine(A, b), casal.Matheron(levels=20), 48, seed=1, check=False)
    assert bool((exact.trace["sigma"].diff() < 0).all())


def test_the_last_level_again_keeps_the_noise() -> None:
    problem = Problem(turned_model(0.03), casal.Affine(*rows()), casal.Identity(), torch.zeros(0, D).double())
    x, clean, estimate = torch.randn(3, 5, D, generator=torch.Generator().manual_seed(2), dtype=torch.float64).unbind()
    none = torch.zeros(5, dtype=torch.long)
    state = MatheronState(x, x, x, clean, estimate, x[:, None][:, :0], none, none, clean, x[:, 0], x[:, 0])
    noise = torch.ones(5, 2, D, dtype=torch.float64)
    again = casal.Matheron().look(problem, state, LevelRow(0.1, 0.1, True, True), noise)
    torch.testing.assert_close(again.x, x + clean - estimate)
    first = casal.Matheron().look(problem, state, LevelRow(0.1, 0.1, False, False), noise)
    torch.testing.assert_close(first.x, clean + 0.1)


def test_the_asymmetry_of_a_network_is_that_of_its_derivative() -> None:
    """J = a (1 - turn) + turn R with R antisymmetric: tan of the share, and zero for a covariance."""
    R = torch.zeros(D, D, dtype=torch.float64)
    R[torch.arange(0, D, 2), torch.arange(1, D, 2)] = 1.0
    R = R - R.T
    for turn, size in ((0.0, 0.0), (0.3, math.sqrt(D) * 0.3 / (0.7 * math.sqrt(D + 2 * D / D)))):
        J = (1 - turn) * torch.eye(D, dtype=torch.float64) + turn * R
        model = casal.edm(
            lambda x, s, J=J: x @ J.T.to(x), casal.karras_sigmas(5), shape=(D,), dtype=torch.float64, time="scalar"
        )
        problem = Problem(model, casal.Affine(*rows()), casal.Identity(), torch.zeros(0, D, dtype=torch.float64))
        free = torch.zeros(4000, D, dtype=torch.float64)
        found = asymmetry(problem, free, 0.5, torch.Generator().manual_seed(0))
        assert abs(found - size) < 0.05


def test_the_space_of_conjugate_gradients_ignores_what_the_network_cannot_know() -> None:
    """A derivative that is no covariance along some rows: steps stay of the size of the gap; not with another floor."""
    stream = torch.Generator().manual_seed(4)
    turn = torch.linalg.qr(torch.randn(D, D, generator=stream, dtype=torch.float64))[0]
    value = torch.tensor([1.0] * 4 + [-1e-3] * 8, dtype=torch.float64)
    skew = 3e-3 * torch.randn(D, D, generator=stream, dtype=torch.float64)
    J = (turn * value) @ turn.T + skew - skew.T
    model = casal.edm(lambda x, s: x @ J.T, casal.karras_sigmas(5), shape=(D,), dtype=torch.float64, time="scalar")
    A, b = turn.T, turn.T @ torch.ones(D, dtype=torch.float64)
    problem = Problem(model, casal.Affine(A, b), casal.Identity(), torch.zeros(0, D, dtype=torch.float64))
    x, none = torch.zeros(3, D, dtype=torch.float64), torch.zeros(3, dtype=torch.long)
    state = MatheronState(x, x, x, x, x, x[:, None][:, :0], none, none, x, x[:, 0], x[:, 0])
    for floor, low, high in ((None, 0.0, 5.0), (1e-9, 100.0, math.inf)):
        method = casal.Matheron(gain="cg", floor=floor)
        moved = method.ask("cg", equations_of(problem), problem, state, LevelRow(1.0, None, False, True), x).clean
        assert low < float(moved.norm(dim=1).max() / b.norm()) < high


def test_units_and_decoders_change_nothing() -> None:
    target, _mean, _cov = gaussian_model()
    A, b = rows()
    scale = torch.logspace(-2, 2, D, dtype=torch.float64)
    shift = torch.arange(D, dtype=torch.float64)
    plain = casal.sample(target, casal.Affine(A, b), casal.Matheron(), 40, seed=2, check=False).samples
    units = casal.sample(
        target,
        casal.Affine(A / scale, b + (A / scale) @ shift),
        casal.Matheron(),
        40,
        seed=2,
        check=False,
        decoder=casal.Standardise(shift, scale),
    ).samples
    torch.testing.assert_close((units - shift) / scale, plain, atol=1e-6, rtol=0)


@pytest.mark.parametrize("inside", [torch.float32, torch.bfloat16])
def test_networks_of_fewer_digits_are_as_right(inside: torch.dtype) -> None:
    """A network that computes with 24 or 8 bits: moments within the error of 400 draws, equations to rounding."""
    variances = torch.logspace(-2, 1, D, dtype=torch.float64)
    A, b = rows()

    def denoise(x: Tensor, s: Tensor) -> Tensor:
        gain = variances.to(x) / (variances.to(x) + s.to(x) ** 2)
        return (x.to(inside) * gain.to(inside)).to(x.dtype)

    target = casal.edm(denoise, casal.karras_sigmas(40, 0.01, 60.0), shape=(D,), dtype=torch.float32)
    z = casal.sample(target, casal.Affine(A, b), casal.Matheron(), 400, seed=3, check=False).samples
    assert float((z @ A.T - b).abs().max()) < 1e-10
    off, wide = z_scores(whitened(z, *conditional(torch.zeros_like(variances), variances.diag(), A, b)))
    assert off < 4.5
    assert wide < 5.5


def test_a_guided_gaussian_is_the_gaussian_with_the_guided_mean() -> None:
    """Conditions move the mean by c alone, so guidance from 0 to 1 by 2 is the mean 2: the one case that is a model."""
    _target, _mean, cov = gaussian_model()
    A, b = rows()

    def denoise(x: Tensor, s: Tensor, c: Tensor) -> Tensor:
        gain = torch.linalg.solve(cov + float(s) ** 2 * torch.eye(D, dtype=torch.float64), cov)
        return c + (x - c) @ gain

    sigmas, one = casal.karras_sigmas(60, 0.01, 60.0), torch.ones(400, 1, dtype=torch.float64)
    model = casal.edm(denoise, sigmas, shape=(D,), dtype=torch.float64, time="scalar", condition={"c": one})
    guided = casal.guided(model, 2.0, {"c": torch.zeros(1, dtype=torch.float64)})
    z = casal.sample(guided, casal.Affine(A, b), casal.Matheron(), 400, seed=2, check=False).samples
    off, wide = z_scores(whitened(z, *conditional(2.0 * torch.ones(D, dtype=torch.float64), cov, A, b)))
    assert off < 4.5
    assert wide < 5.5
    plain = z_scores(whitened(z, *conditional(torch.ones(D, dtype=torch.float64), cov, A, b)))
    assert plain[0] > 10  # the mean without guidance would be seen


@pytest.mark.parametrize("error", [0.0, 0.1])
def test_the_last_level_is_one_at_which_the_score_is_not_error(error: float) -> None:
    """A rough error of .1 in D is all of the score at noise .02, and hardly any of it at .3."""
    _target, mean, cov = gaussian_model()
    stream = torch.Generator().manual_seed(0)
    into, out = (torch.randn(shape, generator=stream, dtype=torch.float64) for shape in ((D, 40), (40, D)))

    def denoise(x: Tensor, s: Tensor) -> Tensor:
        gain = torch.linalg.solve(cov + float(s) ** 2 * torch.eye(D, dtype=torch.float64), cov)
        return mean + (x - mean) @ gain + error * math.sqrt(2 / 40) * torch.sin(2.0 * x @ into) @ out

    model = casal.edm(denoise, casal.karras_sigmas(30, 0.02, 60.0), shape=D, dtype=torch.float64, time="scalar")
    A, b = rows()
    sigmas = casal.sample(model, casal.Affine(A, b), casal.Matheron(modes=False), 64, check=False).trace["sigma"]
    ends = float(sigmas[~sigmas.isnan()][-1])
    assert ends == pytest.approx(0.02) if error == 0.0 else 0.04 < ends < 0.4


def test_products_with_known_values_are_those_of_the_matrix() -> None:
    """Only columns that are not zero are used; and conjugate gradients end where the gap is met."""
    target, _mean, _cov = gaussian_model()
    A = torch.zeros(M, D, dtype=torch.float64)
    A[range(M), [7, 2, 3, 7]] = torch.tensor([2.0, 1.0, -3.0, 1.0], dtype=torch.float64)
    A[3, 5] = 1.0
    b = torch.arange(1.0, 5.0, dtype=torch.float64)
    problem = Problem(target, casal.Affine(A, b), casal.Identity(), torch.zeros(0, D, dtype=torch.float64))
    found, x = equations_of(problem), torch.randn(6, D, dtype=torch.float64)
    assert found.columns is not None and found.columns.tolist() == [2, 3, 5, 7]
    torch.testing.assert_close(found.times(x), x @ found.matrix.T)
    torch.testing.assert_close(found.back(x[:, :M]), x[:, :M] @ found.matrix)
    solution = (torch.linalg.pinv(A) @ b)[None]
    torch.testing.assert_close(found.gap(solution), torch.zeros(1, M, dtype=torch.float64), atol=1e-12, rtol=0)
    asked = list[int]()
    white = casal.edm(
        lambda x, s: (asked.append(1), x / (1 + s**2))[1], casal.karras_sigmas(9), shape=(D,), dtype=torch.float64
    )
    method = casal.Matheron(6, gain="cg", modes=False)
    casal.sample(white, casal.Affine(A, b), method, 8, check=False)
    assert len(asked) <= 9 + 6 * 3 + 5  # S is a multiple of the identity: one iteration a level solves it


def test_the_batch_bounds_every_call_of_the_network() -> None:
    _target, mean, cov = gaussian_model()
    A, b = rows()
    seen = list[int]()

    def watched(x: Tensor, s: Tensor) -> Tensor:
        seen.append(len(x))
        gain = torch.linalg.solve(cov + float(s) ** 2 * torch.eye(D, dtype=torch.float64), cov)
        return mean + (x - mean) @ gain

    model = casal.edm(watched, casal.karras_sigmas(10, 0.01, 60.0), shape=(D,), dtype=torch.float64, time="scalar")
    for gain in ("shared", "own", "cg"):
        casal.sample(
            model, casal.Affine(A, b), casal.Matheron(6, gain), 40, check=False, run=casal.Run(batch=8, threads=1)
        )
    assert max(seen) == 8


def test_a_wide_sphere_is_met_and_its_mean_is_right() -> None:
    """N(m, 1) on a sphere far wider than the posterior: von Mises-Fisher of concentration |m| R in three dimensions."""
    model = casal.edm(
        lambda x, s: 2.0 * (s**2 / (1 + s**2)) * torch.eye(3, dtype=x.dtype)[0] + x / (1 + s**2),
        casal.karras_sigmas(40, 0.01, 20.0),
        shape=(3,),
        dtype=torch.float64,
    )
    n = 300
    z = casal.sample(model, casal.Sphere(4.0), casal.Matheron(15), n, seed=3, check=False).samples
    k = 8.0  # E cos = coth k - 1 / k, Var cos = 1 / k^2 - 1 / sinh^2 k
    seen, exact = float(z[:, 0].mean()) / 4.0, 1.0 / math.tanh(k) - 1.0 / k
    assert abs(seen - exact) < 0.03
    assert float((z.norm(dim=1) - 4.0).abs().max()) < 1e-12


def test_what_it_does_not_take_is_refused() -> None:
    target, *_ = gaussian_model()
    union = casal.Sphere(1.0) | casal.Sphere(3.0)
    with pytest.raises(SettingError, match="SplitGibbs"):
        casal.sample(target, union, casal.Matheron(), 8)
    nine = casal.Implicit(lambda z: z[:, :9] ** 2 - 1.0)
    with pytest.raises(SettingError, match="9 curved equations"):
        casal.sample(target, nine, casal.Matheron(), 8)
    density = casal.energy(lambda x: (x**2).sum(1) / 2, steps=5, step_size=0.1, init=torch.zeros(8, 3))
    with pytest.raises(SettingError, match="no denoiser"):
        casal.sample(density, casal.Sphere(2.0), casal.Matheron(), 8)


def test_auto_takes_it_for_linear_equations_and_for_values_of_each_chain() -> None:
    target, mean, cov = gaussian_model()
    wide = casal.edm(lambda x, s: x / (1 + s**2), casal.karras_sigmas(8, 0.05, 10.0), shape=(24,), dtype=torch.float64)
    A, _ = rows()
    truth = torch.distributions.MultivariateNormal(mean, cov).sample((32,))
    own = casal.sample(target, casal.Affine(A, casal.PerChain(truth @ A.T)), n=32, seed=1)
    assert own.provenance["method"] == "Matheron" and bool(own.certificate.feasible.all())
    sums = casal.Affine(torch.eye(24, dtype=torch.float64)[:20], torch.zeros(20, dtype=torch.float64))
    flat = casal.sample(wide, sums, n=32, seed=1)
    assert flat.provenance["method"] == "Matheron" and flat.fidelity.verdict != "not promised"
    bounded = casal.sample(wide, sums & casal.Box(-1.0, 1.0), casal.Matheron(4, flows=0), 32, seed=1)
    assert bounded.fidelity.verdict == "not promised"  # inequalities act through the last projection alone
