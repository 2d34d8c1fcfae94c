"""Runs in which every chain has its own condition: rows cut with the batches, stored, and never mixed by resampling.

The model has two conditions with a Gaussian each, so that the answer on a line is known in each of them.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import casal
from casal.diagnostics import Evidence, assess
from casal.errors import SettingError, ShapeError, StoreError
from casal.methods import Problem, Usage
from casal.sampling.prepare import prepare
from casal.sampling.run import Options

N = 256
LABEL = torch.arange(N) % 2
MEAN = torch.tensor([[1.5, 0.0], [-1.0, 0.5]], dtype=torch.float64)
VARIANCE = torch.tensor([[1.0, 0.25], [0.25, 0.64]], dtype=torch.float64)
LINE = casal.Affine([[1.0, 1.0]], [0.5])


def moments(label: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    assert len(label) == len(x), "the condition of other chains"
    return MEAN.to(x)[label], VARIANCE.to(x)[label]


def denoiser(y: Tensor, sigma: Tensor, label: Tensor) -> Tensor:
    mean, variance = moments(label, y)
    power = (sigma if sigma.ndim == 0 else sigma[:, None]) ** 2
    return mean + variance / (variance + power) * (y - mean)


def potential(x: Tensor, label: Tensor) -> Tensor:
    mean, variance = moments(label, x)
    return ((x - mean).square() / variance).sum(1) / 2


def velocity(x: Tensor, t: Tensor, label: Tensor) -> Tensor:
    """E[x1 - noise | x_t] for the same Gaussians."""
    mean, variance = moments(label, x)
    spread = t**2 * variance + (1 - t) ** 2
    return mean + (t * variance - (1 - t)) / spread * (x - t * mean)


def diffusion(label: Tensor = LABEL, network: Any = denoiser, **options: Any) -> casal.Target:
    given = {"shape": 2, "churn": 1.0, "dtype": torch.float64, "condition": {"label": label}, **options}
    return casal.edm(network, casal.karras_sigmas(20, 0.02, 8.0), **given)


def density(label: Tensor = LABEL) -> casal.Target:
    start = casal.GaussianStart(2, 2.0, dtype=torch.float64)
    return casal.energy(potential, steps=120, step_size=0.1, init=start, condition={"label": label})


def on_the_line(label: int) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of the first coordinate given x + y = 0.5."""
    mean, variance = MEAN[label], VARIANCE[label]
    gain = variance[0] / variance.sum()
    return mean[0] + gain * (0.5 - mean.sum()), (variance[0] * (1 - gain)).sqrt()


STRICT = {
    "split gibbs": (diffusion, casal.SplitGibbs(0.02, levels=15)),
    "metropolis": (diffusion, casal.SplitGibbs(0.02, levels=15, moves="metropolis")),
    "level": (diffusion, casal.SplitGibbs(0.05, levels=12, moves="level")),
    "matheron": (diffusion, casal.Matheron(levels=15)),
    "weighted": (density, casal.WeightedCASAL()),
    "auto": (density, "auto"),
}
ALONE = {"casal": casal.CASAL(10.0), "projected": casal.Projected(), "dps": casal.FinalProjection(casal.DPS(1.0))}


@pytest.mark.parametrize("name", STRICT)
def test_every_condition_has_its_own_distribution(name: str) -> None:
    make, method = STRICT[name]
    result = casal.sample(make(), LINE, method, N, run=casal.Run(batch=100))
    assert bool(result.certificate.feasible.all())
    assert result.provenance["condition"] == f"label ({N},)"
    for label in (0, 1):
        z = result.samples[label == LABEL, 0]
        copies = len(result.ancestors[label == LABEL].unique())
        mean, spread = on_the_line(label)
        assert float((z.mean() - mean).abs()) < 5 * spread / copies**0.5
        assert 0.65 < float(z.std() / spread) < 1.5
        other, _ = on_the_line(1 - label)  # what swapped conditions would give
        assert float((z.mean() - other).abs()) > 10 * spread / copies**0.5
    if name != "look ahead":  # which counts its particles anew
        assert torch.equal(LABEL[result.ancestors], LABEL)


@pytest.mark.parametrize("name", ALONE)
def test_methods_whose_chains_do_not_meet(name: str) -> None:
    result = casal.sample(diffusion(), LINE, ALONE[name], N, run=casal.Run(batch=60))
    means = [float(result.samples[label == LABEL, 0].mean()) for label in (0, 1)]
    assert means[0] > 0.3 and means[1] < -0.3


@pytest.mark.parametrize("name", [name for name in (*STRICT, *ALONE) if name not in ("auto", "matheron")])
def test_one_condition_for_all_is_the_model_with_that_condition(name: str) -> None:
    """But for "auto", HMC here, which tempers and weighs modes where there is no condition, and Matheron, too."""
    make, method = STRICT[name] if name in STRICT else (diffusion, ALONE[name])
    one = torch.ones(N, dtype=torch.long)
    together = casal.sample(make(one), LINE, method, N, run=casal.Run(batch=100))
    if make is diffusion:
        bare = casal.edm(
            lambda y, s: denoiser(y, s, torch.ones(len(y), dtype=torch.long)),
            casal.karras_sigmas(20, 0.02, 8.0),
            shape=2,
            churn=1.0,
            dtype=torch.float64,
        )
    else:
        start = casal.GaussianStart(2, 2.0, dtype=torch.float64)
        bare = casal.energy(
            lambda x: potential(x, torch.ones(len(x), dtype=torch.long)), steps=120, step_size=0.1, init=start
        )
    alone = casal.sample(bare, LINE, method, N, run=casal.Run(batch=100))
    torch.testing.assert_close(together.samples, alone.samples, rtol=0, atol=1e-10)


def test_the_first_step_of_a_flow_takes_the_rows_of_its_chains() -> None:
    label = torch.arange(50) % 2
    flow = casal.flow(velocity, steps=8, shape=2, dtype=torch.float64, condition={"label": label})
    result = casal.sample(flow, LINE, casal.Unconstrained(), 50, run=casal.Run(batch=16))
    for k in (0, 1):
        same = torch.full((50,), k)
        alone = casal.sample(
            casal.flow(velocity, steps=8, shape=2, dtype=torch.float64, condition={"label": same}),
            LINE,
            casal.Unconstrained(),
            50,
            run=casal.Run(batch=16),
        )
        assert torch.equal(result.samples[label == k], alone.samples[label == k])
        assert not torch.allclose(result.samples[label != k], alone.samples[label != k], atol=0.1)


def test_chains_with_their_own_sets_and_conditions() -> None:
    level = torch.tensor([0.0, 1.0], dtype=torch.float64).repeat_interleave(N // 2)
    line = casal.Affine([[1.0, 1.0]], casal.PerChain(level[:, None]))
    problem = Problem(diffusion(), line, casal.Identity(), torch.zeros(0, 2, dtype=torch.float64))
    labels = problem.groups()
    assert labels is not None and len(labels.unique()) == 4
    both = 2 * level.long() + LABEL
    assert all(len(labels[both == k].unique()) == 1 for k in range(4))
    result = casal.sample(diffusion(), line, casal.SplitGibbs(0.05, levels=10), N, run=casal.Run(batch=100))
    torch.testing.assert_close(result.samples.sum(1), level, rtol=0, atol=1e-12)
    assert torch.equal(both[result.ancestors], both)


def test_rows_go_with_a_subset_and_a_multiple_of_the_chains() -> None:
    problem = Problem(diffusion(), LINE, casal.Identity(), torch.zeros(0, 2, dtype=torch.float64))
    x = torch.randn(N, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    whole = problem.denoise(x, 0.5)
    some = torch.tensor([7, 2, 2, 101])
    assert torch.equal(problem.take(some).denoise(x[some], 0.5), whole[some])
    with pytest.raises(ShapeError, match=r"4 points .* conditions of 256 chains"):
        problem.denoise(x[some], 0.5)
    levels = torch.linspace(0.1, 1.0, 4, dtype=torch.float64)  # a level a chain, in groups of equal level
    scalar = diffusion(network=lambda y, s, label: denoiser(y, s.reshape(()), label), time="scalar").take(some)
    assert scalar.denoise is not None
    found = scalar.denoise(x[some], levels, **scalar.condition)
    torch.testing.assert_close(found, denoiser(x[some], levels, LABEL[some]))


def test_embeddings_of_any_shape_and_dtype() -> None:
    text = torch.randn(4, 3, 5).repeat_interleave(16, 0)
    flag = torch.tensor([True, False]).repeat(32)
    seen = set[Any]()

    def network(x: Tensor, sigma: Tensor, *, text: Tensor, flag: Tensor) -> Tensor:
        seen.add((text.dtype, flag.dtype, tuple(text.shape[1:]), len(text) == len(x) == len(flag)))
        return x * 0.1 + text.mean((1, 2))[:, None]

    target = casal.edm(network, [2.0, 1.0], shape=2, dtype=torch.float64, condition={"text": text, "flag": flag})
    assert target.groups is not None and len(target.groups.unique()) == 8
    casal.sample(target, LINE, casal.Projected(), 64, check=False, run=casal.Run(batch=20))
    assert seen == {(torch.float64, torch.bool, (3, 5), True)}


REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "rows": (casal.Projected(), {"n": 64}, "256 rows, but n = 64"),
    "compile": (casal.Projected(), {"run": casal.Run(compile=True)}, "without conditions"),
    "shared multiplier": (casal.CASAL(10.0, dual="mean"), {}, "no condition"),
    "islands": (casal.SplitGibbs(0.1, islands=2), {}, "resampled among themselves already"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_done_is_refused(name: str) -> None:
    method, options, message = REFUSED[name]
    given = dict(options)
    constraint, n = given.pop("set", LINE), given.pop("n", N)
    with pytest.raises((SettingError, ShapeError), match=message):
        casal.sample(diffusion(), constraint, method, n, **given)


def test_conditions_that_cannot_be_used() -> None:
    with pytest.raises(ShapeError, match="one row per chain"):
        diffusion(torch.tensor(1))
    with pytest.raises(ShapeError, match="3 in label, 2 in text"):
        casal.edm(denoiser, [1.0], shape=2, condition={"label": torch.zeros(3), "text": torch.zeros(2, 4)})
    with pytest.raises(SettingError, match="mapping of names"):
        casal.edm(denoiser, [1.0], shape=2, condition=torch.zeros(3))  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="stiffest"):
        casal.energy(potential, steps=5, step_size="auto", init=torch.zeros(4, 2), condition={"label": LABEL[:4]})
    few = (torch.arange(N) < 5).long()
    with pytest.raises(SettingError, match=r"at least 16 chains of each PerChain value and condition, found 5"):
        casal.sample(diffusion(few), LINE, casal.SplitGibbs(0.1, levels=3), N)


def test_the_condition_is_part_of_the_identity_of_a_run(tmp_path: Path) -> None:
    def call(label: Tensor, seed: int = 0) -> casal.SampleResult:
        return casal.sample(
            diffusion(label), LINE, casal.Projected(), N, seed=seed, run=casal.Run(store=tmp_path / "run", batch=64)
        )

    first = call(LABEL)
    assert torch.equal(call(LABEL).samples, first.samples)
    other = LABEL.clone()
    other[-1] = 1 - other[-1]  # beyond the chains that are probed
    with pytest.raises(StoreError):
        call(other)


def test_a_prepared_conditional_run_pickles() -> None:
    start = torch.zeros(N, 2, dtype=torch.float64)
    target = casal.Target(denoiser, diffusion().table, start, condition={"label": LABEL})
    prepared = prepare(target, LINE, casal.Projected(), N, Options(run=casal.Run(batch=100)))
    again = pickle.loads(pickle.dumps(prepared))
    assert torch.equal(again.target.condition["label"], LABEL)
    batch = again.batches[1]
    problem = again.inside.problem.of_chains(batch.start, batch.stop, Usage())
    assert torch.equal(problem.target.condition["label"], LABEL[100:200])


def test_the_check_of_the_distribution_uses_the_rows_of_its_samples() -> None:
    """Stein's identity holds with the rows of the samples, and fails with those of their neighbours."""
    result = casal.sample(diffusion(), LINE, casal.SplitGibbs(0.02, levels=15), N)
    like = torch.zeros(0, 2, dtype=torch.float64)
    found = []
    for label in (LABEL, 1 - LABEL):
        evidence = Evidence(result, Problem(diffusion(label), LINE, casal.Identity(), like))
        found.append(assess(evidence, promised=True).figures["stein_p"])
    assert found[0] > 0.003 and found[1] < 1e-4
    assert found[0] == pytest.approx(result.fidelity.figures["stein_p"], rel=1e-6)


# ---------------------------------------------------------------------------------------------------- guidance


def test_guidance_is_one_call_of_both_halves() -> None:
    rows = list[int]()

    def counted(y: Tensor, sigma: Tensor, label: Tensor) -> Tensor:
        rows.append(len(y))
        return denoiser(y, sigma, label)

    target = diffusion(network=counted, time="scalar")
    strong = casal.guided(target, 3.0, {"label": 1})
    x, t = torch.randn(N, 2, dtype=torch.float64), torch.tensor(0.7, dtype=torch.float64)
    found = strong.score(x, t, **strong.condition)
    assert rows == [2 * N]
    given, none = (target.score(x, t, label=label) for label in (LABEL, torch.ones_like(LABEL)))
    torch.testing.assert_close(found, none + 3.0 * (given - none))
    assert strong.denoise is not None
    clean = strong.denoise(x, t, **strong.condition)
    torch.testing.assert_close(clean, x + t**2 * found)
    assert casal.guided(target, 1.0, {"label": 1}) is target


def test_guidance_of_a_flow_begins_with_its_first_step() -> None:
    label = torch.zeros(40, dtype=torch.long)

    def pushed(x: Tensor, t: Tensor) -> Tensor:
        none, given = (velocity(x, t, torch.full((len(x),), k)) for k in (1, 0))
        return none + 2.0 * (given - none)

    target = casal.flow(velocity, steps=6, shape=2, dtype=torch.float64, condition={"label": label})
    by_hand = casal.flow(pushed, steps=6, shape=2, dtype=torch.float64)
    method = casal.Unconstrained()
    found = casal.sample(casal.guided(target, 2.0, {"label": 1}), LINE, method, 40, run=casal.Run(batch=16))
    torch.testing.assert_close(found.samples, casal.sample(by_hand, LINE, method, 40, run=casal.Run(batch=16)).samples)
    assert any("guidance with scale 2" in reason for reason in found.fidelity.reasons)


def test_guidance_of_a_fixed_density_is_a_density() -> None:
    strong = casal.guided(density(), 1.5, {"label": 0})
    x = torch.randn(N, 2, dtype=torch.float64)
    assert strong.potential is not None and not strong.notes
    none, given = potential(x, torch.zeros_like(LABEL)), potential(x, LABEL)
    torch.testing.assert_close(strong.potential(x, **strong.condition), none + 1.5 * (given - none))


def test_guidance_that_cannot_be() -> None:
    with pytest.raises(SettingError, match="no condition"):
        casal.guided(casal.edm(lambda x, s: x, [1.0], shape=2), 2.0, {"label": 0})
    with pytest.raises(SettingError, match="'text'"):
        casal.guided(diffusion(), 2.0, {"text": 0})
    with pytest.raises(ShapeError, match="one row"):
        casal.guided(diffusion(), 2.0, {"label": [0, 1]})
    with pytest.raises(SettingError, match="finite"):
        casal.guided(diffusion(), float("nan"), {"label": 0})


def test_conditions_go_through_observations_and_soft_terms() -> None:
    given = casal.posterior(diffusion(), [[1.0, 0.0]], [0.3], 0.5)
    y = torch.randn(N, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert given.denoise is not None
    found = given.denoise(y, 0.8, **given.condition)
    mean, variance = moments(LABEL, y)
    precision = 1 / variance + 1 / 0.64 + torch.tensor([4.0, 0.0], dtype=torch.float64)
    exact = (mean / variance + y / 0.64 + torch.tensor([1.2, 0.0], dtype=torch.float64)) / precision
    torch.testing.assert_close(found, exact)
    soft = casal.tilted(diffusion(), lambda x: -x[:, 0].square() / 2)
    result = casal.sample(soft, LINE, casal.Matheron(levels=30), N, run=casal.Run(batch=100))
    means = [float(result.samples[label == LABEL, 0].mean()) for label in (0, 1)]
    for label in (0, 1):  # the term divides by a Gaussian of variance one about zero
        centre, spread = on_the_line(label)
        tilted = centre / (1 + spread**2)
        assert abs(means[label] - float(tilted)) < 0.2
    assert means[0] - means[1] > 0.6
