"""Right samples are trusted, broken ones are not, and every figure is what its formula says."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from scipy import stats
from torch import Tensor

import casal
from casal.diagnostics import Evidence, Fidelity, assess
from casal.diagnostics.chain_mixing import unforgotten
from casal.diagnostics.check import FEWEST, LARGEST_DETECTABLE, REJECT, SHARE_OF_EVALUATIONS, Check, two_sided_p
from casal.diagnostics.ladder import LEAST_KEPT, displacement, slack
from casal.methods.population import student_quantile

from .populations import CENTRE, draws, evidence, gaussian, generator, score

N = 1000

EXACT: dict[str, casal.Constraint] = {
    "sphere": casal.Sphere(1.0),
    "affine": casal.Affine(torch.tensor([[1.0, 1.0, -1.0]]), 0.5),
    "box": casal.Box(torch.zeros(3), torch.full((3,), 1.5)),
    "orthant": casal.Box(torch.zeros(3), torch.full((3,), math.inf)),
    "mass and energy": casal.MassEnergy(0.3, 1.0),
}

every_set = pytest.mark.parametrize("name", EXACT)


def judged(found: Evidence) -> Fidelity:
    return assess(found, promised=True, method="the test")


# ------------------------------------------------------------------------------------ right and wrong samples


@every_set
def test_exact_draws_are_trusted(name: str) -> None:
    verdicts = [judged(evidence(draws(EXACT[name], N, seed), EXACT[name])).verdict for seed in range(20)]
    assert verdicts.count("trusted") >= 18


@every_set
def test_half_temperature_is_suspect(name: str) -> None:
    for seed in range(3):
        found = judged(evidence(draws(EXACT[name], N, seed, temperature=0.5), EXACT[name]))
        assert found.verdict == "suspect" and "Stein" in found.reasons[0]
        assert found.figures["stein_p"] < REJECT and found.figures["stein_t"] > 4.0


@every_set
def test_one_final_projection_is_suspect(name: str) -> None:
    for seed in range(3):
        z = EXACT[name].project(gaussian(N, seed))
        assert judged(evidence(z, EXACT[name])).verdict == "suspect" or name == "affine"  # where it is right


@pytest.mark.parametrize("shared", [1, 3])
def test_copies_of_exact_draws_raise_no_alarm(shared: int) -> None:
    """Three copies of every draw: errors that took them for independent would be too small by the root of three."""
    alarms = 0
    for seed in range(20):
        ancestors = torch.arange(N).repeat_interleave(shared)
        z = draws(EXACT["sphere"], N, seed)[ancestors]
        found = judged(evidence(z, EXACT["sphere"], ancestors=ancestors))
        assert found.figures["effective_ancestors"] == pytest.approx(N)
        assert shared == 1 or 2.5 < found.figures["inflation"] < 3.5
        alarms += found.verdict != "trusted"
    assert alarms <= 1


def test_atoms_on_the_edge_are_suspect() -> None:
    box = EXACT["box"]
    z = torch.cat([draws(box, 950, 0), box.project(CENTRE + 2.0 + torch.zeros(50, 3).double())])
    found = judged(evidence(z, box))
    assert found.figures["on_edge"] == pytest.approx(0.05)
    assert found.verdict == "suspect" and "5 % of the samples lie exactly on the edge" in found.reasons[0]
    assert "Stein" in found.reasons[1]


def test_samples_outside_the_set_are_on_no_edge() -> None:
    """Unconstrained samples: no projection put them anywhere."""
    box = EXACT["box"]
    z = torch.cat([draws(box, 950, 0), CENTRE + 2.0 + torch.zeros(50, 3).double()])
    assert judged(evidence(z, box)).figures["on_edge"] == 0.0


def test_wrong_weights_of_modes_are_suspect() -> None:
    """Two modes on a circle; p has them equal."""
    circle = casal.Sphere(2.0)

    def grad_log_p(x: Tensor) -> Tensor:
        side = torch.tanh(12.0 * x[:, :1])
        return torch.cat([12.0 * side, torch.zeros_like(x[:, 1:])], dim=1) - x

    def modes(left: int, seed: int) -> Tensor:
        centre = torch.zeros((N, 2), dtype=torch.float64)
        centre[:, 0] = torch.where(torch.arange(N) < left, -12.0, 12.0)
        drawn = circle.sample_near(centre, 1.0, generator(seed))
        assert drawn is not None
        return drawn[torch.randperm(N, generator=generator(seed))]

    right = judged(evidence(modes(N // 2, 0), circle, grad_log_p=grad_log_p))
    assert right.verdict == "trusted" and right.figures["modes"] == 2.0 and right.figures["jump_p"] > REJECT
    wrong = judged(evidence(modes(N // 3, 0), circle, grad_log_p=grad_log_p))
    assert wrong.verdict == "suspect" and "weights of the 2 modes" in wrong.reasons[0]
    assert wrong.figures["stein_p"] > REJECT  # no local check sees it
    lost = judged(evidence(modes(0, 0), circle, grad_log_p=grad_log_p))
    assert lost.verdict == "trusted"  # a mode that no chain has found cannot be known


# ------------------------------------------------------------------------------------ figures


LINE = casal.Affine(torch.tensor([[1.0, 0.0]]), 2.0)


def near_line(w: Tensor, rho: float, weights: Tensor | None = None) -> Evidence:
    """Two coordinates of correlation 0.9, the first held near 2 by exp(-rho/2 (x - 2)^2): the second lags behind.

    E[y] = 0.9 E[x] = 1.8 rho / (1 + rho), against 1.8 on the set; Var[y] = 1 - 0.81 rho / (1 + rho). ``w`` are normal.
    """
    x = 2.0 * rho / (1.0 + rho) + w[0] / (1.0 + rho) ** 0.5
    points = torch.stack([x, 0.9 * x + 0.19**0.5 * w[1]], dim=1)
    state = SimpleNamespace(x=points, rho=torch.tensor(rho))
    return evidence(LINE.project(points), LINE, grad_log_p=lambda v: -v, state=state, weights=weights)


def lag(rho: float) -> tuple[float, float]:
    """Mean and variance of y there."""
    return 1.8 * rho / (1.0 + rho), 1.0 - 0.81 * rho / (1.0 + rho)


def test_the_slack_of_a_ladder_is_read_off_the_population() -> None:
    rho = 10.0
    seen = near_line(torch.randn((2, 4000), generator=generator(0), dtype=torch.float64), rho)
    true = (1.8 - lag(rho)[0]) / lag(rho)[1] ** 0.5
    found = judged(seen)
    assert found.verdict == "suspect" and "the run ends at the coupling rho = 10" in found.reasons[0]
    assert found.figures["slack_bias"] == pytest.approx(true, rel=0.25) and found.figures["slack_p"] < REJECT
    z, points = seen.run.samples, seen.run.state.x
    moved = (points - z).square().sum(1).mean() / (z - z.mean(0)).square().sum(1).mean()
    assert found.figures["moved"] == pytest.approx(float(moved.sqrt()))


@pytest.mark.parametrize("rho", [3.0, 10.0, 100.0])
def test_the_slack_is_its_formula_on_quadrature_nodes(rho: float) -> None:
    """(E_{rho/r} f - E_rho f) / (r - 1) in closed form, f = y and y^2 about the mean, in standard deviations."""
    line = torch.linspace(-7.0, 7.0, 63, dtype=torch.float64)
    nodes = torch.cartesian_prod(line, line)
    (check,) = slack(near_line(nodes.T, rho, torch.exp(-nodes.square().sum(1) / 2)))
    found = check.figures["slack_bias"]
    square = (2.0 / (1.0 + rho)) ** 2 + 1.0 / (1.0 + rho)  # E[(x - 2)^2]
    ratio = 1.0 + 0.5 / max(1.0, rho * square) ** 0.5
    (mean, var), (there, var_there) = lag(rho), lag(rho / ratio)
    first = abs(there - mean) / var**0.5
    second = abs(var_there + (there - mean) ** 2 - var) / (2.0**0.5 * var)
    assert found == pytest.approx(max(first, second) / (ratio - 1.0), rel=1e-6)


def test_the_slack_has_power_and_few_alarms() -> None:
    """A bias of 0.09 standard deviations is found in 4000 chains; offsets that are independent of the foot are not."""
    rho, n, doubted, alarms = 45.0, 4000, 0, 0
    for seed in range(40):
        w = torch.randn((3, n), generator=generator(seed), dtype=torch.float64)
        doubted += any(check.objection for check in slack(near_line(w[:2], rho)))
        z = torch.stack([torch.full((n,), 2.0, dtype=torch.float64), 1.8 + 0.19**0.5 * w[0]], dim=1)
        x = z + torch.stack([w[1] / rho**0.5, torch.zeros(n, dtype=torch.float64)], dim=1)
        found = slack(evidence(z, LINE, state=SimpleNamespace(x=x, rho=torch.tensor(rho))))
        alarms += any(check.objection for check in found)
    assert doubted >= 36 and alarms <= 1


@pytest.mark.parametrize("inside", [1.0, 0.8])
def test_a_last_correction_that_few_chains_carry_is_suspect(inside: float) -> None:
    z = draws(EXACT["sphere"], N, 0)

    def after(kept: float) -> Fidelity:
        known = {"inside": inside, "finish_ess": kept * inside * N, "corrected": 1.0}
        return judged(evidence(z, EXACT["sphere"], trace={key: torch.tensor([value]) for key, value in known.items()}))

    good, bad = after(LEAST_KEPT + 0.01), after(0.1)
    assert good.verdict == "trusted" and good.figures["correction_kept"] == pytest.approx(LEAST_KEPT + 0.01)
    assert bad.verdict == "suspect" and "leaves 10 % of the chains" in bad.reasons[0]


def test_offsets_that_do_not_depend_on_the_foot_leave_no_slack() -> None:
    """What a finish that corrects for rho leaves behind."""
    sphere, rho = EXACT["sphere"], 20.0
    z = draws(sphere, 4000, 0)
    away = 1.0 + torch.randn((4000, 1), generator=generator(1), dtype=torch.float64) / rho**0.5
    found = judged(evidence(z, sphere, state=SimpleNamespace(x=z * away, rho=torch.tensor(rho))))
    assert found.verdict == "trusted" and found.figures["slack_p"] > REJECT


def test_samples_far_from_the_range_of_a_decoder_are_suspect() -> None:
    decoder = casal.Nonlinear(lambda x: torch.cat([x, x.square()], dim=1))
    x = gaussian(200, 0)
    for off, verdict in ((0.15, "suspect"), (1e-4, "unchecked")):
        z = decoder(x) * (1.0 + off)
        everywhere = casal.Ball(1e3)
        found = judged(evidence(z, everywhere, decoder=decoder, state=SimpleNamespace(x=x)))
        assert found.verdict == verdict
        assert found.figures["range_gap"] == pytest.approx(off / (1.0 + off))
        assert math.isnan(found.figures["stein_p"]) and any("do not decode to" in note for note in found.reasons)


def test_few_ancestors_are_never_trusted() -> None:
    z = draws(EXACT["sphere"], N, 0)
    ancestors = torch.arange(N) % int(FEWEST - 1)
    found = judged(evidence(z, EXACT["sphere"], ancestors=ancestors))
    alone = judged(evidence(z, EXACT["sphere"], ancestors=torch.zeros(N, dtype=torch.long)))
    assert alone.verdict == "too few" and alone.reasons[0].startswith(
        "1 effective sample of 1000 chains, 50 needed: nearly all samples"
    )
    assert found.verdict == "too few" and found.reasons[0] == (
        "49 effective samples of 1000 chains, 50 needed: casal.sample(..., n=1400), 1.4 times the model calls"
    )


def test_few_chains_that_are_independent_are_not_too_few() -> None:
    """Their error bars are wide; the verdict says what could have been found."""
    verdicts = list[str]()
    for seed in range(20):
        found = judged(evidence(draws(EXACT["sphere"], 32, seed), EXACT["sphere"]))
        assert 0.3 < found.figures["detectable"] < 2.0
        verdicts.append(found.verdict)
    assert verdicts.count("trusted") >= 16 and "too few" not in verdicts
    cold = [judged(evidence(draws(EXACT["sphere"], 64, k, 0.2), EXACT["sphere"])).verdict for k in range(5)]
    assert cold == ["suspect"] * 5
    half = judged(evidence(draws(EXACT["sphere"], 32, 0), EXACT["sphere"], ancestors=torch.arange(32) // 4))
    assert half.verdict == "too few" and half.reasons[0].startswith("8 effective samples of 32 chains, 11 needed")


def test_checks_without_power_leave_samples_unchecked() -> None:
    found = judged(evidence(draws(EXACT["sphere"], 16, 0), EXACT["sphere"]))
    assert found.verdict == "unchecked" and found.figures["detectable"] > LARGEST_DETECTABLE
    assert found.reasons[0].startswith("the checks find errors of a mean above ")
    fewer = judged(evidence(draws(EXACT["sphere"], 12, 0), EXACT["sphere"]))
    assert (
        fewer.verdict == "unchecked" and "12 effective samples, 16 needed: casal.sample(..., n=65)" in fewer.reasons[0]
    )


def test_the_detectable_error_is_detected() -> None:
    """A shift of that size along the widest axis is found in about 95 of 100 runs, one of half the size in fewer."""
    widest, found = torch.ones(3, dtype=torch.float64), {1.0: 0, 0.5: 0}
    covariance = 0.9 * torch.outer(widest, widest) + 0.1 * torch.eye(3, dtype=torch.float64)
    root, precision = torch.linalg.cholesky(covariance), torch.linalg.inv(covariance)
    everywhere = casal.Affine(torch.zeros(1, 3), 0.0)

    def pull(x: Tensor) -> Tensor:
        return (CENTRE.to(x) - x) @ precision.to(x)

    for seed in range(40):
        z = CENTRE + torch.randn((200, 3), generator=generator(seed), dtype=torch.float64) @ root.T
        least = judged(evidence(z, everywhere, grad_log_p=pull)).figures["detectable"]
        for share in found:
            off = judged(evidence(z + share * least * widest, everywhere, grad_log_p=pull))
            found[share] += off.verdict == "suspect"
    assert found[1.0] >= 35 and found[0.5] <= 20


def test_a_score_that_is_no_number_is_suspect() -> None:
    z = draws(EXACT["box"], N, 0)

    def grad_log_p(x: Tensor) -> Tensor:
        return torch.where(x[:, :1] < 0.05, torch.nan, score(x))

    found = judged(evidence(z, EXACT["box"], grad_log_p=grad_log_p))
    share = float((z[:, 0] < 0.05).double().mean())
    assert found.verdict == "suspect" and found.figures["not_finite"] == pytest.approx(share)
    assert f"not a finite number at {100 * share:.2g} % of the samples" in found.reasons[0]


@pytest.mark.parametrize("step", [0.0, 0.5])
def test_an_energy_with_a_step_is_suspect(step: float) -> None:
    """The samples follow the score, which does not know of the step."""
    box = EXACT["box"]

    def energy(x: Tensor) -> Tensor:
        return (x - CENTRE.to(x)).square().sum(1) / 2 + step * (x[:, 0] > 0.7)

    found = judged(evidence(draws(box, N, 0), box, target=casal.energy(energy, steps=10, init=draws(box, N, 0))))
    assert found.figures["stein_p"] > REJECT
    if step:
        assert found.verdict == "suspect" and "not the gradient of the log-density" in found.reasons[0]
        assert 0.3 < found.figures["not_gradient"] < 0.7
    else:
        assert found.verdict == "trusted" and found.figures["not_gradient"] == 0.0


def test_the_last_move_is_measured_by_the_model() -> None:
    """A move by 0.3 along a coordinate of spread 0.1 is one of three deviations."""
    plane = casal.Affine(torch.tensor([[1.0, 0.0, 0.0]]), 0.0)
    z = plane.project(gaussian(N, 0))
    x = z + torch.tensor([0.3, 0.0, 0.0], dtype=torch.float64)
    width = torch.tensor([0.01, 1.0, 1.0], dtype=torch.float64)

    def grad_log_p(v: Tensor) -> Tensor:
        return (CENTRE.to(v) - v) / width.to(v)

    found = judged(evidence(z, plane, grad_log_p=grad_log_p, state=SimpleNamespace(x=x)))
    assert found.figures["moved_deviations"] == pytest.approx(3.0)
    assert found.figures["moved_most"] == pytest.approx(3.0)
    assert any("100 % of it coordinate [0]" in reason for reason in found.reasons)


def test_the_last_move_is_split_by_direction() -> None:
    """Moves by 0.3 and 0.5 along spreads of 0.1 and 1: 3.0 along the narrow one, (9 + 1/4)^(1/2) in all."""
    line = casal.Affine(torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]), torch.zeros(2))
    z, sign = line.project(gaussian(N, 0)), torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
    move = torch.tensor([0.3, 0.5], dtype=torch.float64) * sign[torch.arange(N) // 8 % 2]
    width = torch.tensor([0.01, 1.0, 1.0], dtype=torch.float64)
    x = z + torch.nn.functional.pad(move, (0, 1))
    (found,) = displacement(
        evidence(z, line, grad_log_p=lambda v: (CENTRE.to(v) - v) / width.to(v), state=SimpleNamespace(x=x))
    )
    assert found.figures["moved_deviations"] == pytest.approx(math.sqrt(9.25))
    assert found.figures["moved_most"] == pytest.approx(3.0, abs=0.1)
    assert "coordinate [0]" in found.notes[0] and not found.objection


def after(kept: float, starts: Tensor, seed: int) -> Evidence:
    """Chains that keep a share of where they began: for draws of p, again draws of p, and all of them in the set."""
    noise = torch.randn(starts.shape, generator=generator(seed), dtype=torch.float64)
    z = CENTRE + kept * (starts - CENTRE) + math.sqrt(1.0 - kept**2) * noise
    return evidence(z, casal.Ball(100.0), state=SimpleNamespace(x=z), starts=starts)


@pytest.mark.parametrize("kept", [0.0, 0.6, 0.9])
def test_a_right_start_may_be_remembered(kept: float) -> None:
    found = [judged(after(kept, gaussian(N, seed), 100 + seed)) for seed in range(5)]
    assert all(one.verdict == "trusted" for one in found)
    assert all(abs(one.figures["memory"] - kept) < 0.15 for one in found)
    assert all(("start_bias" in one.figures) == (kept > 0.5) for one in found)


def test_a_wrong_start_that_is_remembered_is_suspect() -> None:
    """Of a mean that is off by 2 deviations at the start, chains keep the share b: 1.2 of them."""
    wrong = gaussian(N, 0) + torch.tensor([2.0, 0.0, 0.0], dtype=torch.float64)
    (found,) = unforgotten(after(0.6, wrong, 1))
    assert "remember where they began" in found.objection and "steps=30" in found.objection
    direction = after(0.6, wrong, 1).since_start
    assert direction is not None and direction.value > direction.limit
    shift = 0.6 * 2.0 * abs(float(direction.direction[0]))
    assert found.figures["start_bias"] == pytest.approx(shift, abs=0.15)
    assert not list(unforgotten(after(0.0, wrong, 1)))  # forgotten: nothing is spent


def test_memory_is_counted_by_ancestors() -> None:
    """Copies of few ancestors share what they remember: 20 families of 50 show it by chance, and raise no alarm."""
    starts, noise = gaussian(N, 0), torch.randn((20, 3), generator=generator(1), dtype=torch.float64)
    ancestors = torch.arange(20).repeat_interleave(50)
    z = CENTRE + noise[ancestors]
    found = evidence(z, casal.Ball(100.0), ancestors=ancestors, state=SimpleNamespace(x=z), starts=starts).since_start
    assert found is not None and found.limit > 1.0


def test_a_run_knows_where_its_chains_began() -> None:
    """A slow direction and a narrow start far from the mean: 60 steps do not forget it, draws of p may be kept."""
    sd = torch.tensor([1.0, 30.0], dtype=torch.float64)

    def run(spread: Tensor, batch: int | None = None) -> Fidelity:
        def init(n: int, g: torch.Generator) -> Tensor:
            return spread * torch.randn((n, 2), generator=g, dtype=torch.float64)

        target = casal.langevin(lambda x: x / sd.to(x) ** 2, steps=60, step_size=0.5, init=init)
        half = casal.HalfSpace(torch.tensor([1.0, 0.0], dtype=torch.float64), 0.5)
        how = casal.Run(batch=batch, threads=1)
        return casal.sample(target, half, casal.WeightedCASAL(), 400, run=how).fidelity

    right, wrong = run(sd), run(sd / 3)
    assert right.verdict == "trusted" and right.figures["memory"] > 0.8 and right.figures["start_bias"] < 0.1
    assert wrong.verdict == "suspect" and any("remember where they began" in reason for reason in wrong.reasons)
    assert run(sd, batch=100).figures["memory"] > 0.8  # every batch has a stream of its own


def test_a_check_objects_above_its_limit() -> None:
    assert Check(0.2, 0.1, "too wide", "casal.sample(...)").objection == "too wide: casal.sample(...)"
    assert Check(0.1, 0.1, "too wide").objection == Check(math.nan, 0.1, "too wide").objection == ""
    assert Check(0.2, 0.1, "too wide").objection == "too wide"


def test_advice_names_a_method_that_takes_the_set() -> None:
    box, union = EXACT["box"], EXACT["box"] | casal.Sphere(1.0)
    assert "casal.HMC()" in evidence(draws(box, 100, 0), box).closer()
    assert "casal.WeightedCASAL()" in evidence(draws(box, 100, 0), union).closer()


def test_methods_without_a_promise_say_so() -> None:
    z = draws(EXACT["sphere"], N, 0)
    found = assess(evidence(z, EXACT["sphere"]), promised=False, method="final projection")
    assert found.verdict == "not promised" and "final projection does not promise" in found.reasons[0]
    assert "stein_p" not in found.figures


def test_what_was_known_before_the_run_counts() -> None:
    z = draws(EXACT["sphere"], N, 0)
    noted = assess(evidence(z, EXACT["sphere"]), promised=True, notes=("the start is wide",))
    assert noted.verdict == "trusted" and noted.reasons == ("the start is wide",)
    doubted = assess(evidence(z, EXACT["sphere"]), promised=True, objections=("the step is 100 times too small",))
    assert doubted.verdict == "suspect" and doubted.reasons[0] == "the step is 100 times too small"


def test_samples_that_are_not_finite_are_suspect() -> None:
    z = draws(EXACT["sphere"], N, 0)
    z[3] = math.nan
    found = judged(evidence(z, EXACT["sphere"]))
    assert found.verdict == "suspect" and "1 of 1000 samples are not finite" in found.reasons[0]


# ------------------------------------------------------------------------------------ cost and models


@pytest.mark.parametrize("evaluations", [500.0, 10.0, 1.0])
def test_checks_stay_below_their_share(evaluations: float) -> None:
    found = evidence(draws(EXACT["sphere"], N, 0), EXACT["sphere"], evaluations=evaluations)
    figures = judged(found).figures
    assert found.problem.usage.scores <= SHARE_OF_EVALUATIONS * evaluations * N
    assert found.problem.usage.projections <= 0.2 * evaluations * N
    assert math.isnan(figures["stein_p"]) == (evaluations == 1.0)


def test_nothing_is_spent_unless_allowed() -> None:
    found = evidence(draws(EXACT["sphere"], N, 0), EXACT["sphere"])
    unspent = assess(found, promised=True, spend=False)
    assert unspent.verdict == "unchecked" and "casal.sample(..., check=True)" in unspent.reasons[0]
    assert found.problem.usage.scores == 0


def diffusion(spread: float, finest: float, wrong: float = 1.0) -> casal.Target:
    """The denoiser of N(CENTRE, spread^2); its distance to the data is multiplied by ``wrong``."""

    def denoise(y: Tensor, sigma: Tensor) -> Tensor:
        pull = sigma.to(y) ** 2 / (spread**2 + sigma.to(y) ** 2)
        return y + wrong * pull * score(y)

    return casal.edm(denoise, casal.karras_sigmas(10, finest, 10.0), shape=3, dtype=torch.float64)


def test_a_diffusion_model_gives_its_score_without_noise() -> None:
    z = draws(EXACT["sphere"], N, 1)
    assert judged(evidence(z, EXACT["sphere"], target=diffusion(1.0, 0.1))).verdict == "trusted"
    assert judged(evidence(z, EXACT["sphere"], target=diffusion(1.0, 0.1, wrong=2.0))).verdict == "suspect"


@pytest.mark.parametrize(("finest", "verdict"), [(0.005, "trusted"), (0.01, "trusted"), (0.1, "unchecked")])
def test_a_model_whose_finest_level_is_too_coarse_is_not_checked(finest: float, verdict: str) -> None:
    """Of data with spread 0.05 the scores at sigma and 2 sigma differ by 3 sigma^2 / (0.05^2 + 4 sigma^2)."""
    z = CENTRE + 0.05 * torch.randn((N, 3), generator=generator(0), dtype=torch.float64)
    z = EXACT["affine"].project(z)
    found = judged(evidence(z, EXACT["affine"], target=diffusion(0.05, finest)))
    assert found.verdict == verdict and math.isnan(found.figures["stein_p"]) == (verdict == "unchecked")
    assert verdict == "trusted" or "differ by more than 20 % along every direction" in found.reasons[0]
    assert verdict == "trusted" or "casal.calibrate(target, family, method, n=64)" in found.reasons[0]


def test_a_set_for_each_chain() -> None:
    radius = torch.linspace(0.5, 2.0, 10, dtype=torch.float64).repeat(100)
    spheres = casal.Sphere(casal.PerChain(radius))
    assert judged(evidence(draws(spheres, N, 0), spheres)).verdict == "trusted"
    assert judged(evidence(draws(spheres, N, 0, temperature=0.5), spheres)).verdict == "suspect"


# ------------------------------------------------------------------------------------ words and data


def test_plain_data_and_back() -> None:
    found = Fidelity("suspect", ("one", "two"), {"range_gap": 0.25, "stein_p": math.nan, "inflation": math.inf})
    again = Fidelity.from_plain(found.plain())
    assert (again.verdict, again.reasons) == (found.verdict, found.reasons)
    assert again.plain() == found.plain() and math.isnan(again.figures["stein_p"])


def test_one_line() -> None:
    right = judged(evidence(draws(EXACT["sphere"], N, 0), EXACT["sphere"]))
    seen = "distribution trusted (missed modes and model error cannot be seen); 1000 effective samples, "
    assert str(right).startswith(seen)
    assert str(Fidelity("suspect", ("one", "two"), {})) == "distribution suspect: one (1 more in fidelity.reasons)"
    assert "\n" not in str(right)


@pytest.mark.parametrize("degrees", [10.0, 49.0, 1000.0])
def test_the_tail_of_student(degrees: float) -> None:
    t = torch.linspace(0.0, 8.0, 33, dtype=torch.float64)
    exact = torch.from_numpy(2.0 * stats.t.sf(t.numpy(), degrees))
    assert float((two_sided_p(t, degrees) / exact).log().abs().max()) < 0.1
    for p in (0.05, 2e-4):
        assert float(two_sided_p(torch.tensor(student_quantile(p, degrees)), degrees)) == pytest.approx(p, rel=1e-6)
