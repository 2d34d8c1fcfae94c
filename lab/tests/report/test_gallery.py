"""The gallery: a page of motions, and the one in the documentation, which must be what the code makes."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from casal_lab.mixture import motions as mixture
from casal_lab.motion import Motion
from casal_lab.particle import motions as particle
from casal_lab.particle.setup import RADIUS, exact_answer
from casal_lab.problems.three_modes import CASES
from casal_lab.quadrotor import motions as quadrotor
from casal_lab.report.gallery import write_gallery

from .bench import Bench, call, motion_of

PAGE = Path(__file__).parents[3] / "docs" / "gallery.html"
AGAIN = "run casal gallery --out docs/gallery.html"


def motions_of(page: Path) -> dict[str, Motion]:
    found = re.findall(r'<script type="application/json">(.*?)</script>', page.read_text(encoding="utf-8"), re.DOTALL)
    motions = [Motion.of_record(json.loads(part)) for part in found]
    return {motion.name: motion for motion in motions}


def last_shares(motion: Motion) -> dict[str, Any]:
    return {panel.title: panel.shares[-1] for panel in motion.panels if panel.shares is not None}


def test_the_page_of_the_documentation_is_what_the_code_makes() -> None:
    """Panels, frames, backdrops and exact answers; the chains themselves differ in the last bits between machines."""
    text = PAGE.read_text(encoding="utf-8")
    assert len(text.encode()) < 640_000
    assert not re.search(r"""(?:src|href)=["'](?!data:|#)|@import|url\(|fetch\(|XMLHttp""", text)
    assert "Made by <code>casal gallery</code>" in text
    found = motions_of(PAGE)
    assert list(found) == ["particle_chains", "mixture_chains", "quadrotor_solving"]
    labels = {
        "particle_chains": particle.LABELS,
        "mixture_chains": tuple(mixture.METHODS),
        "quadrotor_solving": quadrotor.SHOWN,
    }
    for name, motion in found.items():
        assert [panel.title for panel in motion.panels] == [*labels[name], "exact draws"], AGAIN
    for name, made, frames in (
        ("particle_chains", particle.backdrop(), particle.FRAMES),
        ("mixture_chains", mixture.backdrop(), mixture.FRAMES),
    ):
        motion = found[name]
        assert len(motion.frame_labels) == frames, AGAIN
        assert made.image is not None and motion.backdrop.image is not None
        assert np.abs(made.image.astype(int) - motion.backdrop.image).max() <= 1, AGAIN
        assert made.area is not None and motion.backdrop.area is not None
        assert np.abs(made.area - motion.backdrop.area).max() < 1e-3, AGAIN
    assert found["particle_chains"].groups[1].exact == pytest.approx(exact_answer()["wrong"])
    exact = CASES[mixture.PLACE].exact.weights.tolist()
    assert [group.exact for group in found["mixture_chains"].groups] == pytest.approx(exact)


def test_the_page_of_the_documentation_shows_what_the_library_claims() -> None:
    """All samples on the circle; the shares right for the weighted methods, and wrong for one projection at the end."""
    found = motions_of(PAGE)
    for name, radius in (("particle_chains", RADIUS), ("mixture_chains", mixture.RADIUS)):
        for panel in found[name].panels:
            assert np.abs(np.linalg.norm(panel.frames[-1], axis=1) - radius).max() < 1e-3
    sides = last_shares(found["particle_chains"])
    assert sides["WeightedCASAL"][1] < 0.005 < 0.3 < sides["projected"][1]
    exact = np.array([group.exact for group in found["mixture_chains"].groups])
    distance = {label: np.abs(share - exact).sum() / 2 for label, share in last_shares(found["mixture_chains"]).items()}
    assert distance["exact draws"] < 0.05 and distance["SplitGibbs"] < 0.05
    assert distance["final projection"] > 0.35 and distance["CASAL"] > 0.15


def test_the_command_writes_the_page(bench: Bench, tmp_path: Path) -> None:
    bench.registry["beta"] = replace(bench.registry["beta"], moving=lambda: [motion_of("beta")])
    done = call("gallery", "--out", str(tmp_path / "new" / "g.html"))
    assert done.exit_code == 0, done.output
    assert list(motions_of(tmp_path / "new" / "g.html")) == ["beta_rise"]
    assert bench.calls == []  # nothing else is run
    wrong = call("gallery", "--only", "alpha", "--out", str(tmp_path / "g.html"))
    assert wrong.exit_code == 2 and "there are: beta" in re.sub(r"[\s│]+", " ", wrong.output)


@pytest.mark.parametrize("width", [390, 1400])
def test_one_problem_is_shown_at_a_time_also_in_a_frame(browser: Any, bench: Bench, tmp_path: Path, width: int) -> None:
    both = {name: replace(found, moving=lambda n=name: [motion_of(n)]) for name, found in bench.registry.items()}
    page = write_gallery(both, tmp_path / "gallery.html")
    (tmp_path / "home.html").write_text('<iframe src="gallery.html" style="width:100%"></iframe>', encoding="utf-8")
    tab = browser.new_page(viewport={"width": width, "height": 844}, reduced_motion="reduce")
    said: list[str] = []
    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.goto(page.as_uri() + "#beta")
    shown = [tab.locator(f"section#{name}") for name in both]
    assert [part.is_visible() for part in shown] == [False, True]
    tab.locator("#tab-alpha").click()
    assert [part.is_visible() for part in shown] == [True, False]
    assert tab.evaluate("document.querySelector('#alpha canvas').width") > 200  # drawn when it is shown
    tab.keyboard.press("ArrowRight")
    assert [part.is_visible() for part in shown] == [False, True]
    assert tab.evaluate("document.activeElement.id") == "tab-beta"
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    tab.goto((tmp_path / "home.html").as_uri())
    inside = tab.frame_locator("iframe")
    assert inside.locator("#tab-alpha").is_visible()
    assert not inside.locator("h1").is_visible()
    assert said == []
    tab.close()
