"""PCFM, ECI and predict-project-renoise: one step against the papers' equations, and what the methods reduce to."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import casal
from casal import ECI, PCFM, ProjectRenoise
from casal.errors import DivergedError, SettingError
from casal.methods import METHODS, Each, Method, Problem
from casal.methods.cheap import FlowRow, FlowState

MEAN = torch.tensor([1.0, -1.0], dtype=torch.float64)
SPREAD = 0.7
NORMAL, LEVEL = torch.tensor([2.0, 1.0], dtype=torch.float64), 0.5
STEPS = 6
N = 5

CHEAP = ("PCFM", "ECI", "predict-project-renoise")


def denoise(x: Tensor, alpha: Tensor | float, sigma: Tensor | float) -> Tensor:
    """E[x0 | alpha x0 + sigma noise = x] for N(MEAN, SPREAD^2 I)."""
    gain = alpha * SPREAD**2 / (alpha**2 * SPREAD**2 + sigma**2)
    return MEAN + gain * (x - alpha * MEAN)


def velocity(x: Tensor, t: Tensor) -> Tensor:
    """E[x1 - noise | x] = (D - x) / (1 - t)."""
    return (denoise(x, t, 1 - t) - x) / (1 - t)


def straight(x: Tensor, t: Tensor) -> Tensor:
    """The flow to one point: every trajectory is a straight line."""
    return (MEAN - x) / (1 - t)


def flow(field: Any = velocity) -> casal.Target:
    return casal.flow(field, steps=STEPS, shape=2, dtype=torch.float64)


def models() -> dict[str, casal.Target]:
    """The Gaussian as a flow, as an EDM model and as a DDPM."""
    betas = torch.linspace(0.05, 0.4, STEPS, dtype=torch.float64)
    alpha = torch.cumprod(1 - betas, 0).sqrt()
    one = torch.ones((), dtype=torch.float64)

    def eps(x: Tensor, t: Tensor) -> Tensor:
        a, s = alpha[t], (1 - alpha[t] ** 2).sqrt()
        return (x - a * denoise(x, a, s)) / s

    return {
        "flow": flow(),
        "edm": casal.edm(lambda x, s: denoise(x, one, s), [8.0, 3.0, 1.0, 0.3], shape=2, dtype=torch.float64),
        "ddpm": casal.ddpm(eps, betas, shape=2, dtype=torch.float64),
    }


def line() -> casal.Affine:
    return casal.Affine(NORMAL[None], LEVEL)


def onto_line(u: Tensor) -> Tensor:
    return u - ((u @ NORMAL - LEVEL) / NORMAL.square().sum())[:, None] * NORMAL


def everywhere() -> casal.Constraint:
    return casal.FromProjection(lambda z: z, lambda z: torch.zeros(len(z), dtype=torch.float64))


def problem(target: casal.Target, constraint: casal.Constraint) -> Problem:
    like = torch.zeros((0, 2), dtype=torch.float64)
    return Problem(target, constraint, casal.Identity().to(like), like)


def rows(p: Problem, method: Method[Any]) -> list[FlowRow]:
    return [row for stage in method.stages(p, N) if isinstance(stage, Each) for row in stage.rows]


def drawn() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    x, start, w = torch.randn((3, N, 2), generator=generator, dtype=torch.float64)
    return x, start, w


def levels(target: casal.Target, k: int) -> tuple[float, float, float, float]:
    """alpha and sigma of a row and of the next one; 1 and 0 after the last."""
    alpha, sigma = target.table.alpha, target.table.sigma
    assert alpha is not None and sigma is not None
    after = (float(alpha[k + 1]), float(sigma[k + 1])) if k + 1 < len(alpha) else (1.0, 0.0)
    return float(alpha[k]), float(sigma[k]), *after


@pytest.mark.parametrize("name", ["flow", "edm", "ddpm"])
@pytest.mark.parametrize("k", [1, -1])
def test_steps_on_a_line_are_the_equations(name: str, k: int) -> None:
    target, (x, start, w) = models()[name], drawn()
    p, k = problem(target, line()), k % len(target.table)
    a, s, after, noise = levels(target, k)
    clean = onto_line(denoise(x, a, s))
    pcfm = PCFM()
    found = pcfm.step(p, FlowState(x, start), rows(p, pcfm)[k], w)
    torch.testing.assert_close(found.x, after * clean + noise * start)
    torch.testing.assert_close(found.noise, start)

    eci = ECI(mixing=3, resample=2)
    planned = rows(p, eci)
    assert len(planned) == 3 * len(target.table)
    assert [bool(row.fresh) for row in planned[:6]] == [False, True] * 3
    state = FlowState(x, start)
    for j in range(3):
        before, row = state, planned[3 * k + j]
        state = eci.step(p, before, row, w)
        kept = w if bool(row.fresh) else before.noise
        at = (after, noise) if j == 2 else (a, s)
        want = at[0] * onto_line(denoise(before.x, a, s)) + at[1] * kept
        torch.testing.assert_close(state.x, want)
        torch.testing.assert_close(state.noise, kept)

    for fresh in (1.0, 0.6):
        renoise = ProjectRenoise(fresh=fresh)
        hat = (x - a * denoise(x, a, s)) / s
        want = after * clean + noise * (fresh * w + (1 - fresh**2) ** 0.5 * hat)
        torch.testing.assert_close(renoise.step(p, FlowState(x, start), rows(p, renoise)[k], w).x, want)


def test_the_noise_of_the_start_is_read_off_the_first_state() -> None:
    target, (x, _, w) = flow(), drawn()
    p, pcfm = problem(target, line()), PCFM()
    (first,) = pcfm.stages(p, N)
    assert isinstance(first, Each)
    a, s, after, noise = levels(target, 0)
    D = denoise(x, a, s)
    found = first.step(p, pcfm.start(p, x, torch.Generator()), first.rows[0], w)
    torch.testing.assert_close(found.noise, (x - a * D) / s)
    torch.testing.assert_close(found.x, after * onto_line(D) + noise * (x - a * D) / s)


def test_newton_steps_reach_a_line_at_once_and_a_circle_from_outside() -> None:
    x, start, w = drawn()
    flat, curved = problem(flow(), line()), problem(flow(), casal.Sphere(2.0))
    one = PCFM(newton=1)
    by_newton = one.step(flat, FlowState(x, start), rows(flat, one)[2], w).x
    torch.testing.assert_close(
        by_newton, PCFM().step(flat, FlowState(x, start), rows(flat, PCFM())[2], w).x, rtol=1e-5, atol=1e-5
    )
    last = rows(curved, one)[-1]
    u = denoise(x, last.alpha, last.sigma)
    square = u.square().sum(1, keepdim=True)
    want = u - 2 * u * (square - 4.0) / (4 * square + 1e-6)  # h = |u|^2 - 4, J = 2 u
    torch.testing.assert_close(one.step(curved, FlowState(x, start), last, w).x, want)


def test_the_relaxed_correction_descends_its_cost() -> None:
    x, start, w = drawn()
    p = problem(flow(), line())
    method = PCFM(weight=0.5, correction_steps=3, correction_step=0.02)
    row = rows(p, method)[2]
    D = denoise(x, row.time, 1 - row.time)
    hat = (x - row.time * D) / (1 - row.time)
    back = (1 - row.after) * start + row.after * onto_line(D)
    u, length = back, NORMAL.norm()
    for _ in range(3):
        h = ((u + (1 - row.after) * (D - hat)) @ NORMAL - LEVEL) / length  # rows of an affine set have length one
        u = u - 0.02 * (2 * (u - back) + 2 * 0.5 * h[:, None] * NORMAL / length)
    torch.testing.assert_close(method.step(p, FlowState(x, start), row, w).x, u)


def run(target: casal.Target, constraint: casal.Constraint, method: Method[Any]) -> casal.SampleResult:
    return casal.sample(target, constraint, method, N, seed=4, run=casal.Run(dtype=torch.float64))


def test_without_a_constraint_pcfm_is_the_ode_of_a_straight_flow() -> None:
    plain = run(flow(straight), everywhere(), casal.Unconstrained()).samples
    for method in (PCFM(), ECI()):
        torch.testing.assert_close(run(flow(straight), everywhere(), method).samples, plain)
    bent = run(flow(), everywhere(), PCFM()).samples
    assert not torch.allclose(bent, run(flow(), everywhere(), casal.Unconstrained()).samples, atol=1e-3)


@pytest.mark.parametrize("name", ["flow", "edm"])
def test_without_a_constraint_and_new_noise_renoising_is_the_ode(name: str) -> None:
    target = models()[name]
    plain = run(target, everywhere(), casal.Unconstrained()).samples
    torch.testing.assert_close(run(target, everywhere(), ProjectRenoise(fresh=0.0)).samples, plain)
    assert not torch.allclose(run(target, everywhere(), ProjectRenoise()).samples, plain, atol=1e-3)


def test_methods_that_are_the_same() -> None:
    target, set_ = flow(), casal.Sphere(1.5)
    torch.testing.assert_close(run(target, set_, ECI()).samples, run(target, set_, PCFM()).samples)
    torch.testing.assert_close(run(target, set_, ECI(2, 1)).samples, run(target, set_, ProjectRenoise(2)).samples)


@pytest.mark.parametrize("label", CHEAP)
@pytest.mark.parametrize("name", ["flow", "edm", "ddpm"])
def test_every_sample_is_feasible_and_no_distribution_is_promised(name: str, label: str) -> None:
    for constraint in (line(), casal.Sphere(1.5), casal.Box(-0.5, 0.5)):
        found = casal.sample(models()[name], constraint, METHODS[label].example, 10, seed=0)
        assert bool(found.certificate.feasible.all()) and found.fidelity.verdict == "not promised"
        assert found.samples.dtype == torch.float64


@pytest.mark.parametrize("label", CHEAP)
def test_each_chain_has_its_own_set(label: str) -> None:
    """A chain alone with its value is the same chain: nothing is shared. Curved sets too."""
    level, radius = torch.linspace(-1, 1, N, dtype=torch.float64), torch.linspace(0.5, 2, N, dtype=torch.float64)
    together = run(flow(), casal.Affine(NORMAL[None], casal.PerChain(level[:, None])), METHODS[label].example).samples
    torch.testing.assert_close(together @ NORMAL, level)
    for k in (0, N - 1):
        alone = run(flow(), casal.Affine(NORMAL[None], level[k : k + 1]), METHODS[label].example).samples
        torch.testing.assert_close(together[k], alone[k])
    curved = run(flow(), casal.Sphere(casal.PerChain(radius)), METHODS[label].example).samples
    torch.testing.assert_close(curved.norm(dim=1), radius)


def test_behind_a_decoder() -> None:
    A = torch.tensor([[1.0, 1.0], [1.0, -1.0], [0.5, 0.0]], dtype=torch.float64)
    for label in CHEAP:
        found = casal.sample(
            flow(),
            casal.Sphere(2.0),
            METHODS[label].example,
            20,
            decoder=casal.Linear(A),
            run=casal.Run(dtype=torch.float64),
        )
        assert found.samples.shape == (20, 3) and bool(found.certificate.feasible.all())


def test_what_is_refused() -> None:
    for make in (
        lambda: PCFM(newton=0),
        lambda: ECI(mixing=0),
        lambda: ProjectRenoise(fresh=1.5),
        lambda: PCFM(weight=-1.0),
    ):
        with pytest.raises(SettingError):
            make()
    with pytest.raises(SettingError, match="no denoised estimate"):
        casal.sample(casal.langevin(lambda x: x, steps=5, step_size=0.1, init=torch.ones(3, 2)), line(), PCFM(), 3)
    with pytest.raises(DivergedError, match="leave them out"):
        casal.sample(flow(), casal.Sphere(2.0), PCFM(weight=1e6), 5)
