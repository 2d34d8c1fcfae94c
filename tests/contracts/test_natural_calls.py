"""What people try first: bounds that are left out, sets on images, short reprs, and commands in messages."""

from __future__ import annotations

import pickle
import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import casal
from casal.errors import SettingError
from casal.sampling.workers import refuse_unguarded_script

from .sets import SETS

EVENT = (2, 3, 4)
D = 24
Z = torch.randn(5, *EVENT, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
W = torch.rand(2, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

ON_IMAGES: dict[str, Callable[[], tuple[casal.Constraint, casal.Constraint]]] = {
    "Affine": lambda: (casal.Affine(W.reshape(2, *EVENT), 3.0), casal.Affine(W, 3.0)),
    "Polytope": lambda: (casal.Polytope(W.reshape(2, *EVENT), -1.0), casal.Polytope(W, -1.0)),
    "HalfSpace": lambda: (casal.HalfSpace(W[0].reshape(EVENT), -1.0), casal.HalfSpace(W[0], -1.0)),
    "Box": lambda: (casal.Box(W[0].reshape(EVENT), None), casal.Box(W[0], None)),
    "BoxHyperplane": lambda: (
        casal.BoxHyperplane(0.0, 1.0, W[0].reshape(EVENT), 3.0),
        casal.BoxHyperplane(0.0, 1.0, W[0], 3.0),
    ),
    "MassEnergy": lambda: (casal.MassEnergy(3.0, 30.0), casal.MassEnergy(3.0, 30.0)),
    "Simplex": lambda: (casal.Simplex(2.0), casal.Simplex(2.0)),
    "Sphere": lambda: (casal.Sphere(1.0, W[0].reshape(EVENT)), casal.Sphere(1.0, W[0])),
    "both": lambda: (
        casal.Box(0, None) & casal.Affine(W[:1].reshape(1, *EVENT), 3.0),
        casal.Box(0, None) & casal.Affine(W[:1], 3.0),
    ),
}


@pytest.mark.parametrize("name", ON_IMAGES)
def test_images_need_no_flattening(name: str) -> None:
    """A set on (n, c, h, w) is the set on the flattened events."""
    image, flat = ON_IMAGES[name]()
    torch.testing.assert_close(image.project(Z).flatten(1), flat.project(Z.flatten(1)), rtol=0, atol=1e-14)
    assert float(image.violation(image.project(Z)).max()) < 1e-12


def test_a_bound_that_is_left_out_is_infinite() -> None:
    z = torch.tensor([[-2.0, 0.5, 2.0]], dtype=torch.float64)
    for box, right in (
        (casal.Box(0, None), [0.0, 0.5, 2.0]),
        (casal.Box(None, 1), [-2.0, 0.5, 1.0]),
        (casal.Box(high=1), [-2.0, 0.5, 1.0]),
        (casal.Box(casal.PerChain([1.0]), None), [1.0, 1.0, 2.0]),
    ):
        assert box.project(z).tolist() == [right]
        assert casal.constraint_from_spec(box.spec()).project(z).tolist() == [right]


def test_sets_have_short_reprs() -> None:
    assert not {case.id: repr(case.constraint) for case in SETS if len(repr(case.constraint)) >= 300}


def test_a_repr_never_prints_a_thousand_numbers() -> None:
    many = torch.linspace(0.0, 1.0, 1000, dtype=torch.float64)
    union: casal.Constraint = casal.Union(*(casal.Sphere(1.0 + k) for k in range(100)))
    target = casal.ddpm(lambda x, t: x, 1e-4 + 0.01 * many, shape=(1, 16, 16))
    things = [
        casal.Affine(many.reshape(1, -1), 1.0),
        casal.Box(-many, many),
        casal.Ball(1.0, many),
        casal.Ball(1.0).shifted(many),
        casal.Product(*[casal.Sphere(1.0)] * 100, sizes=[2] * 100),
        union,
        target,
        target.table,
        casal.Linear(torch.ones(30, 40)),
        casal.DCT(4, size=(16, 16)),
    ]
    for thing in things:
        assert len(repr(thing)) < 200 and " object at 0x" not in repr(thing)
    assert repr(casal.Box(0, None)) == "Box(low=0, high=inf)"
    assert "96 more" in repr(union)


def test_processes_from_an_unguarded_script_are_refused_with_a_sentence(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    head = "from casal.sampling.workers import refuse_unguarded_script as look\ndef f():\n    look()\n"
    script.write_text(head + "f()\n")
    with pytest.raises(SettingError, match=r"import script\.py again, and line 4 .* under if __name__"):
        runpy.run_path(str(script), run_name="__main__")
    script.write_text(head + "if __name__ == '__main__':\n    f()\n")
    runpy.run_path(str(script), run_name="__main__")
    refuse_unguarded_script()  # pytest's own script is guarded


def test_a_callback_and_a_cluster_are_not_for_each_other() -> None:
    target = casal.langevin(lambda x: x, steps=2, step_size=0.1, init=torch.ones(2, 2))
    with pytest.raises(SettingError, match="called in this process"):
        casal.sample(target, casal.Sphere(1.0), casal.CASAL(1.0), 2, run=casal.Run(workers=1, callback=print))


# ------------------------------------------------------------------------------------------ models, starts and results

SPHERE = casal.Sphere(1.0)
PLANE = casal.GaussianStart(2)
BETAS = torch.linspace(1e-4, 0.02, 1000)


def plain(grad: Any = lambda x: x, init: Any = PLANE, **more: Any) -> casal.Target:
    return casal.langevin(grad, steps=20, step_size=0.1, init=init, **more)


def of_energy(f: Any) -> casal.Target:
    return casal.energy(f, steps=20, step_size=0.1, init=PLANE)


def fails(x: Tensor, *more: Tensor) -> Tensor:
    raise KeyError("my own")


def without_eval() -> Callable[[Tensor], Tensor]:
    net = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2))
    return net.train()


WRONG_MODELS: dict[str, tuple[Callable[[], Any], str]] = {
    "nothing returned": (lambda: plain(lambda x: None), "gradient of langevin returned NoneType.*return"),
    "a tuple": (lambda: plain(lambda x: (x,)), r"returned tuple.*out\[0\]"),
    "no function": (lambda: plain(3.0), "grad must be a function"),
    "no energy": (lambda: of_energy(3.0), "f must be a function"),
    "energy of NumPy": (lambda: of_energy(lambda x: (x.detach().numpy() ** 2).sum(1)), "ndarray.*a tensor"),
    "energy detached": (lambda: of_energy(lambda x: x.detach().square().sum(1)), "no gradient.*casal.langevin"),
    "autograd without energy": (
        lambda: plain(lambda x: torch.autograd.grad(x.square().sum(), x)[0]),
        "gradient of langevin fails on 3 rows.*does not require grad.*casal.energy",
    ),
    "own error": (lambda: plain(fails), "gradient of langevin fails on 3 rows.*KeyError: 'my own'"),
    "own error, energy": (lambda: of_energy(fails), "potential of energy fails on 2 rows.*my own"),
    "own error, network": (
        lambda: casal.edm(fails, [2.0, 1.0], shape=2),
        r"denoiser\(x, t\) fails on 3 rows.*KeyError: 'my own'",
    ),
    "float64 network": (
        lambda: plain(torch.nn.Linear(2, 2).double()),
        r"same dtype.*network.to\(torch.float32\).*casal.Run\(dtype=torch.float64\)",
    ),
    "init of one argument": (lambda: plain(init=lambda n: torch.randn(n, 2)), r"init\(2, generator\).*lambda n, gen"),
    "init=torch.randn": (lambda: plain(init=torch.randn), r"init\(2, generator\) of langevin fails.*GaussianStart"),
    "init of words": (lambda: plain(init=[["a", "b"]]), "init of langevin must be starting points"),
    "too many starting points": (lambda: plain(init=torch.zeros(31, 2)), r"31 rows for n = 30"),
    "no starting point": (lambda: plain(init=None), r"takes any number of coordinates.*init=torch.zeros\(d\)"),
    "step_size=None": (lambda: casal.langevin(lambda x: x, steps=3, step_size=None, init=PLANE), "got None"),  # type: ignore[arg-type]
    "alphas": (lambda: casal.ddpm(lambda x, t: x, 1 - BETAS, shape=2), "0.9999 to 0.98.*1 - alphas"),
    "alphas_cumprod": (
        lambda: casal.ddim(lambda x, t: x, torch.cumprod(1 - BETAS, 0), shape=2),
        "fall from 0.9999 to 4.036e-05, as alphas_cumprod",
    ),
    "chains that see each other": (lambda: plain(lambda x: x - x.mean(0)), r"other chains of a call.*network.eval\(\)"),
    "the same from one point": (lambda: plain(lambda x: x - x.mean(0), torch.zeros(30, 2)), "other chains of a call"),
    "training mode": (lambda: plain(without_eval()), r"network.eval\(\)"),
}


@pytest.mark.parametrize("name", WRONG_MODELS)
def test_a_wrong_model_is_refused_with_a_way_out(name: str) -> None:
    make, says = WRONG_MODELS[name]
    with pytest.raises(casal.CasalError, match=says):
        casal.sample(make(), SPHERE, casal.CASAL(1.0), 30)


def test_the_way_out_of_a_refusal_works() -> None:
    """The calls that the messages above name."""
    casal.sample(plain(init=torch.zeros(2).expand(30, -1)), SPHERE, casal.CASAL(1.0), 30)
    casal.sample(plain(torch.nn.Linear(2, 2).double()), SPHERE, casal.CASAL(1.0), 3, run=casal.Run(dtype=torch.float64))
    casal.sample(plain(without_eval().eval()), SPHERE, casal.CASAL(1.0), 30)  # type: ignore[attr-defined]
    abar = torch.cumprod(1 - BETAS.double(), 0)
    betas = 1 - abar / torch.cat([torch.ones(1), abar[:-1]])
    torch.testing.assert_close(betas, BETAS.double(), rtol=1e-9, atol=0)


def test_a_score_is_compared_with_itself_up_to_rounding_only() -> None:
    """A wide network gives other roundings in calls of another size, and a random score differs every time."""
    torch.manual_seed(0)
    wide = torch.nn.Sequential(torch.nn.Linear(2, 2000), torch.nn.SiLU(), torch.nn.Linear(2000, 2))
    noisy = lambda x: x + 0.5 * torch.randn(x.shape)  # noqa: E731
    for grad in (wide, noisy):
        casal.sample(plain(grad), SPHERE, casal.CASAL(1.0), 30)


def test_lists_and_arrays_are_taken_as_tensors() -> None:
    start = torch.randn(30, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def samples(target: casal.Target) -> Tensor:
        return casal.sample(target, SPHERE, casal.CASAL(1.0), 30).samples

    right = samples(plain(lambda x: 2 * x, start))
    for grad in (lambda x: (2 * x).tolist(), lambda x: 2 * x.numpy()):
        assert torch.equal(samples(plain(grad, start)), right)
    for init in (start.numpy(), lambda n, generator: start[:n].numpy(), lambda n, generator: start[:n].tolist()):
        assert torch.allclose(samples(plain(lambda x: 2 * x, init)), right, atol=1e-5)
    narrow = torch.as_tensor(start.tolist())  # Python's numbers have the default dtype
    assert torch.equal(samples(plain(lambda x: 2 * x, start.tolist())), samples(plain(lambda x: 2 * x, narrow)))
    network = casal.edm(lambda x, s: (x / (1 + s**2)).numpy(), [2.0, 1.0], shape=2)
    assert torch.equal(samples(network), samples(casal.edm(lambda x, s: x / (1 + s**2), [2.0, 1.0], shape=2)))


WRONG_SETTINGS: dict[str, tuple[Callable[[], Any], str]] = {
    "posterior": (
        lambda: casal.posterior(casal.edm(lambda x, s: x, [2.0, 1.0], shape=2), [[1.0, 0.0]], "a", 0.1),
        "H, y and noise of an observation must be numbers",
    ),
    "tilted": (
        lambda: casal.tilted(plain(init=torch.zeros(3, 2)), lambda x: x[:, 7]),
        "log_weight fails on 1 row .*IndexError",
    ),
    "CASAL": (lambda: casal.CASAL("auto"), "got 'auto'; casal.WeightedCASAL"),  # type: ignore[arg-type]
    "WeightedCASAL": (lambda: casal.WeightedCASAL("auto"), "None to be found, got 'auto'"),  # type: ignore[arg-type]
    "Penalty": (lambda: casal.sample(plain(), SPHERE, casal.Penalty("much"), 4), "weight must be a number"),  # type: ignore[arg-type]
    "Decoupled": (lambda: casal.Decoupled("much"), "weight must be a number|rho must be a number"),  # type: ignore[arg-type]
    "karras": (lambda: casal.karras_sigmas(30, "small"), "low must be a number"),  # type: ignore[arg-type]
    "churn": (lambda: casal.edm(lambda x, s: x, [2.0, 1.0], shape=2, churn="a"), "churn must be a number"),  # type: ignore[arg-type]
    "Implicit": (lambda: casal.Implicit(g=lambda z: z), r"no keyword g.*Implicit\(fn=h, inequality=g\)"),
    "and": (lambda: casal.Sphere(1.0) and casal.Box(0.0, 1.0), "a & b for points in both"),
}


@pytest.mark.parametrize("name", WRONG_SETTINGS)
def test_a_wrong_setting_is_refused_with_a_way_out(name: str) -> None:
    make, says = WRONG_SETTINGS[name]
    with pytest.raises(casal.CasalError, match=says):
        found = make()
        casal.sample(plain(), SPHERE, found, 4)


def test_karras_sigmas_take_the_names_of_their_paper() -> None:
    assert torch.equal(casal.karras_sigmas(9, sigma_min=0.01, sigma_max=50.0), casal.karras_sigmas(9, 0.01, 50.0))


PICKLED: dict[str, Callable[[torch.nn.Module], casal.Target]] = {
    "langevin": plain,
    "energy": lambda net: of_energy(torch.nn.Sequential(net, torch.nn.Linear(2, 1))),
    "annealed": lambda net: casal.annealed(
        OfTime(net), [2.0, 1.0], steps_per_level=2, step_size=0.1, init=torch.zeros(5, 2)
    ),
    "ddpm": lambda net: casal.ddpm(OfTime(net), BETAS, shape=2, steps=5),
    "ddim": lambda net: casal.ddim(OfTime(net), BETAS, shape=2, steps=5),
    "vp_sde": lambda net: casal.vp_sde(OfTime(net), steps=10, shape=2),
    "edm": lambda net: casal.edm(OfTime(net), [2.0, 1.0], shape=2),
    "flow": lambda net: casal.flow(OfTime(net), steps=5, shape=2),
}


class OfTime(torch.nn.Module):
    """A network that takes a time as well."""

    def __init__(self, net: torch.nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self.net(x) / (1 + t)  # type: ignore[no-any-return]


@pytest.mark.parametrize("family", casal.targets.TARGETS)
def test_a_model_whose_network_can_be_pickled_can_be(family: str) -> None:
    target = PICKLED[family](torch.nn.Linear(2, 2))
    again = pickle.loads(pickle.dumps(target))
    one, other = (casal.sample(model, SPHERE, casal.CASAL(1.0), 5).samples for model in (target, again))
    assert torch.equal(one, other)


def test_a_density_with_a_wrong_sign_is_asked_about() -> None:
    """p ~ exp(x^2 / 2) on a box is a density, so its samples may be right; a reader must see the question."""
    box = casal.Box(-1.0, 1.0)
    asked = casal.sample(plain(lambda x: -x), box, "auto", 200)
    assert "is the sign right" in str(asked) and asked.fidelity.verdict == "trusted"
    wrong = casal.sample(of_energy(lambda x: -x.square().sum(1) / 2), SPHERE, "auto", 200)
    assert "is the sign right" in str(wrong)
    for target in (plain(), plain(lambda x: 0 * x), plain(lambda x: 0 * x + 1), of_energy(lambda x: x.square().sum(1))):
        assert "sign" not in " ".join(casal.sample(target, box, "auto", 200).fidelity.reasons)


def gamma(n: int, shape: int = 2, **more: Any) -> casal.Target:
    """p ~ x^2 exp(-x) in every coordinate, not a number for x < 0; mean and variance are 3."""
    init = 1.0 + torch.rand(n, shape, generator=torch.Generator().manual_seed(0))
    return casal.energy(lambda x: (x - 2 * x.log()).sum(1), steps=200, step_size=0.1, init=init, **more)


def test_a_density_that_is_not_defined_off_the_set_is_sampled_inside() -> None:
    result = casal.sample(gamma(2000), casal.Box(0, None), "auto", 2000)
    assert result.provenance["method"] == "HMC" and result.fidelity.verdict == "trusted"
    mean, error = result.samples.mean(0), (3.0 / 2000) ** 0.5
    assert float((mean - 3.0).abs().max()) < 4 * error


def test_evaluations_that_are_no_numbers_are_an_objection() -> None:
    for method in (casal.WeightedCASAL(), casal.WeightedCASAL(50.0)):
        found = casal.sample(gamma(20_000), casal.Box(0, None), method, 20_000).fidelity
        assert found.verdict == "suspect"
        assert any(re.search(r"not a number at [\d.]+ % of the points.*casal.HMC", r) for r in found.reasons)


def test_the_mean_of_a_list_or_an_array_is_that_of_the_tensor() -> None:
    result = casal.sample(plain(), SPHERE, casal.CASAL(1.0), 30)
    right = result.expect(lambda z: z[:, 0] ** 2)
    for f in (lambda z: z.numpy()[:, 0] ** 2, lambda z: [float(x) ** 2 for x in z[:, 0]]):
        found = result.expect(f)
        assert torch.allclose(found.value, right.value) and torch.allclose(found.standard_error, right.standard_error)
    with pytest.raises(casal.CasalError, match=r"tensor \(30,\) or \(30, k\).*NoneType"):
        result.expect(lambda z: None)  # type: ignore[arg-type, return-value]
