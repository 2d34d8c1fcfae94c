"""``casal reproduce`` and ``casal report``: what is run, what is kept, and the page as a browser shows it."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest
from matplotlib.figure import Figure
from typer.testing import CliRunner

from casal import cli
from casal.lab.experiment import Claim, Column, Experiment, Outcome, ResultTable
from casal.lab.laws import gaussian_line as line
from casal.lab.report import cache, html_explorer, html_pictures
from casal.lab.report.html import write_page
from casal.lab.report.page_run import Ran, reproduce

LONG = "A very long heading of a column that no phone can show " * 2
ROWS: list[dict[str, Any]] = [
    {"method": "CASAL", "error": 10.0, "error_se": 0.5, "note": "12 of 28"},
    {"method": "projected", "error": 9.0, "error_se": 0.5, "note": "diverged"},
    {"method": "WeightedCASAL", "error": -1e-3, "note": "3 of 28"},
    {"method": "exact draws", "error": None, "note": "2"},
]
COLUMNS = (
    Column("method", "method"),
    Column("error", "error", ".3g"),
    Column("note", "note"),
    *(Column(f"extra{k}", LONG) for k in range(6)),
)


def outcome_of(name: str, quick: bool) -> Outcome:
    claims = [
        Claim("it <works> \\| well", "1", "0.99", "reproduced"),
        Claim("fast", "2 s", "3 s", "partly"),
        Claim("free", "0", "1", "not reproduced"),
    ]
    return Outcome(name, [ResultTable("Errors", COLUMNS, ROWS, "A note.")], claims, {}, {"n": 5, "quick": quick}, 0.5)


class Bench:
    """Two fake experiments that count their runs."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, bool]] = []
        self.act: dict[str, Callable[[], object]] = {}
        self.registry = {
            name: Experiment(name, f"Does {name} hold?", ("CASAL",), partial(self._run, name), draw)
            for name in ("alpha", "beta")
        }

    def _run(self, name: str, quick: bool, labels: Sequence[str] | None, tell: Callable[[str], None]) -> Outcome:
        tell("first part")
        self.calls.append((name, quick))
        self.act.get(name, lambda: None)()
        return outcome_of(name, quick)


def fake_figures(outcome: Outcome) -> dict[str, Figure]:
    drawn = {}
    for name, width in (("small", 4.0), ("large", 14.0)):
        figure, axis = plt.subplots(figsize=(width, 2))
        axis.plot([0, 1], [1, 0])
        drawn[f"{outcome.name}_{name}"] = figure
    return drawn


def draw(outcome: Outcome, folder: Path) -> list[Path]:
    paths = []
    for name, figure in fake_figures(outcome).items():
        paths.append(folder / f"{name}.png")
        figure.savefig(paths[-1], dpi=40)
        figure.savefig(paths[-1].with_suffix(".svg"))
        plt.close(figure)
    return paths


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    made = Bench()
    monkeypatch.setattr(cli, "EXPERIMENTS", made.registry)
    return made


def call(*arguments: str) -> Any:
    return CliRunner().invoke(cli.app, list(arguments))


def test_every_experiment_runs_once_and_the_second_call_runs_nothing(bench: Bench, tmp_path: Path) -> None:
    first = call("reproduce", "--quick", "--out", str(tmp_path))
    assert first.exit_code == 0, first.output
    assert str(tmp_path / "index.html") in first.output
    assert bench.calls == [("alpha", True), ("beta", True)]
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    second = call("reproduce", "--quick", "--out", str(tmp_path))
    assert second.exit_code == 0
    assert len(bench.calls) == 2
    without_time = partial(re.sub, r"page written.*?</dd>", "")
    assert without_time((tmp_path / "index.html").read_text(encoding="utf-8")) == without_time(page)


def test_other_settings_run_again_and_keep_what_there_was(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reproduce(bench.registry, tmp_path, quick=True)
    reproduce(bench.registry, tmp_path, quick=False, only=["alpha"])
    assert bench.calls[2:] == [("alpha", False)]
    found = {name: cache.best(tmp_path, name) for name in bench.registry}
    assert [record.stamp.quick for record in found.values() if record] == [False, True]
    monkeypatch.setattr(cache, "source_digest", lambda: "another source")
    page = write_page(bench.registry, tmp_path).read_text(encoding="utf-8")
    assert page.count("the source has changed since this was run") == 2
    assert reproduce(bench.registry, tmp_path, quick=True).kept == []
    assert bench.calls[3:] == [("alpha", True), ("beta", True)]
    assert [record.stamp.quick for name in bench.registry if (record := cache.best(tmp_path, name))] == [True, True]


def test_an_interrupted_run_keeps_what_is_done_and_goes_on_with_the_rest(bench: Bench, tmp_path: Path) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    bench.act["beta"] = interrupt
    stopped = call("reproduce", "--quick", "--out", str(tmp_path))
    assert stopped.exit_code == 130
    assert f"casal reproduce --quick --out {tmp_path}" in stopped.output
    assert "not run yet" in (tmp_path / "index.html").read_text(encoding="utf-8")
    del bench.act["beta"]
    assert call("reproduce", "--quick", "--out", str(tmp_path)).exit_code == 0
    assert [name for name, _ in bench.calls] == ["alpha", "beta", "beta"]
    assert "not run yet" not in (tmp_path / "index.html").read_text(encoding="utf-8")


def test_a_run_that_was_cut_while_writing_counts_as_not_run(bench: Bench, tmp_path: Path) -> None:
    reproduce(bench.registry, tmp_path, only=["alpha"])
    (cache.folder_of(tmp_path, "alpha", False) / "record.json").unlink()
    assert reproduce(bench.registry, tmp_path, only=["alpha"]).done.keys() == {"alpha"}


def test_when_time_is_up_the_rest_is_left_out_by_name(bench: Bench, tmp_path: Path) -> None:
    bench.act["alpha"] = lambda: time.sleep(30)  # one long part: only a timer can end it
    began = time.monotonic()
    ran = reproduce(bench.registry, tmp_path, minutes=0.5 / 60)
    assert time.monotonic() - began < 10
    assert ran.late == ["alpha", "beta"]
    page = write_page(bench.registry, tmp_path, ran.missing).read_text(encoding="utf-8")
    assert "left out: the time given was used up" in page


def test_one_failure_does_not_cost_the_others(bench: Bench, tmp_path: Path) -> None:
    def fail() -> None:
        raise ValueError("no <luck>")

    bench.act["alpha"] = fail
    result = call("reproduce", "--out", str(tmp_path))
    assert result.exit_code == 1
    assert "ValueError: no <luck>" in result.output
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "no &lt;luck&gt;" in page
    assert "Does beta hold?" in page


def test_report_rebuilds_the_page_and_runs_nothing(bench: Bench, tmp_path: Path) -> None:
    reproduce(bench.registry, tmp_path, quick=True)
    assert call("report", str(tmp_path)).exit_code == 0
    assert len(bench.calls) == 2
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    for wanted in ("Does alpha hold?", "casal run alpha --quick", "it &lt;works&gt; | well", "± 0.5", "A note."):
        assert wanted in page
    assert call("report", str(tmp_path / "nothing")).exit_code == 2


@pytest.mark.parametrize("arguments", [["reproduce", "--only", "gamma"]])
def test_an_unknown_name_is_answered_with_the_right_ones(bench: Bench, arguments: list[str]) -> None:
    result = call(*arguments)
    assert result.exit_code == 2
    assert "alpha, beta" in re.sub(r"\s*│\s*", " ", result.output)


def test_the_page_asks_nothing_of_the_network(bench: Bench, tmp_path: Path) -> None:
    reproduce(bench.registry, tmp_path)
    page = write_page(bench.registry, tmp_path).read_text(encoding="utf-8")
    assert not re.search(r"""(?:src|href)=["'](?!data:|#)|@import|url\(|fetch\(|XMLHttp""", page)


def test_the_digest_sees_programs_and_not_words(tmp_path: Path) -> None:
    file = tmp_path / "methods.py"

    def digest(text: str) -> str:
        file.write_text(text, encoding="utf-8")
        cache.source_digest.cache_clear()
        return cache.source_digest(tmp_path)

    before = digest('"""Words."""\nx = 1\n')
    assert digest('"""Other words."""\n# why\nx  =  1\n') == before
    assert digest("x = 2\n") != before
    cache.source_digest.cache_clear()


def test_an_outcome_survives_its_file(tmp_path: Path, bench: Bench) -> None:
    saved = cache.save(tmp_path, bench.registry["alpha"], True, outcome_of("alpha", True))
    loaded = cache.load(tmp_path, "alpha", True)
    assert loaded is not None
    assert loaded.current
    assert loaded.stamp == saved.stamp
    assert list(loaded.outcome.claims) == list(saved.outcome.claims)
    assert loaded.outcome.tables[0].rows == ROWS
    assert list(loaded.outcome.tables[0].columns) == list(COLUMNS)


def test_a_drawing_with_very_many_points_goes_in_as_raster(tmp_path: Path) -> None:
    figure, axis = plt.subplots(figsize=(4, 3))
    axis.plot([0, 1], [0, 1])
    figure.savefig(tmp_path / "a.png", dpi=160)
    figure.savefig(tmp_path / "a.svg")
    plt.close(figure)
    small = html_pictures.picture(tmp_path / "a.png")
    svg = (tmp_path / "a.svg").read_text(encoding="utf-8")
    (tmp_path / "a.svg").write_text(svg + "<!--" + "x" * html_pictures.LARGEST + "-->", encoding="utf-8")
    large = html_pictures.picture(tmp_path / "a.png")
    assert small.source.startswith("data:image/svg+xml")
    assert large.source.startswith("data:image/png")
    assert small[1:] == large[1:] == (384, 288)


def test_the_laws_of_the_explorer() -> None:
    """Against the solution of (P), known by a 2 x 2 inverse; and the step that must diverge does."""
    data = html_explorer.explorer_data()
    exact = data["exact"]
    for k in (0, 20, 40):
        rho = data["rho"][k]
        mean, spread = data["laws"]["CASAL, common dual"][0][k]
        (a, b), (_, d) = line.PRECISION
        assert mean == pytest.approx(exact[0], abs=1e-8)
        assert spread**2 == pytest.approx(0.5 * (a + rho) / ((a + rho) * d - b * b), rel=1e-3)
    assert data["laws"]["Algorithm 1"][-1][-1] is None
    assert data["laws"]["CASAL"][-1][-1] is not None
    assert data["laws"]["Algorithm 1"][0][-1][1] ** 2 == pytest.approx(0.5 * exact[1] ** 2, rel=0.1)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("there is no Chromium: apt-get install chromium")
    with driver.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def page_file(bench: Bench, tmp_path: Path) -> str:
    reproduce(bench.registry, tmp_path, ran=Ran())
    return write_page(bench.registry, tmp_path).as_uri()


def open_page(browser: Any, address: str, width: int, scheme: str) -> tuple[Any, list[str]]:
    page = browser.new_page(viewport={"width": width, "height": 844}, color_scheme=scheme)
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: said.append(request.url) if request.url.startswith("http") else None)
    page.goto(address)
    return page, said


def luminance(colour: str) -> float:
    parts = [float(part) / 255 for part in re.findall(r"[\d.]+", colour)[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


CONTRAST = """() => [...document.querySelectorAll("main *, nav *")].filter((e) =>
  e.checkVisibility() && [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()) && !e.closest("svg")
).map((e) => {
  let ground = e;
  const clear = (node) => getComputedStyle(node).backgroundColor === "rgba(0, 0, 0, 0)";
  while (ground && clear(ground)) ground = ground.parentElement;
  const under = ground && ground.tagName !== "NAV" ? ground : document.body;
  return [e.className || e.tagName, getComputedStyle(e).color, getComputedStyle(under).backgroundColor];
})"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1400])
def test_the_page_in_a_browser(browser: Any, page_file: str, width: int, scheme: str) -> None:
    page, said = open_page(browser, page_file, width, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("[...document.images].filter((i) => i.getAttribute('src')).length") == 4
    assert page.evaluate(
        "[...document.images].filter((i) => i.getAttribute('src')).every((i) => i.complete && i.naturalWidth > 0)"
    )
    found = page.evaluate(CONTRAST)
    assert len(found) > 50
    for name, front, back in found:
        light, dark = sorted((luminance(front), luminance(back)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, (name, front, back)
    ground = luminance(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert ground < 0.05 if scheme == "dark" else ground > 0.8
    assert said == []
    page.close()


def test_tables_sort_and_methods_hide(browser: Any, page_file: str) -> None:
    page, said = open_page(browser, page_file, 1400, "light")
    table = page.locator("#alpha table.sortable")

    def column(k: int) -> list[str]:
        return [str(row.locator("th, td").nth(k).inner_text()) for row in table.locator("tbody tr:visible").all()]

    original = column(1)
    assert original == ["10 ± 0.5", "9 ± 0.5", "-0.001", "-"]
    button = table.locator("thead button").nth(1)
    button.click()
    assert column(1) == ["-0.001", "9 ± 0.5", "10 ± 0.5", "-"]
    assert table.locator("thead th").nth(1).get_attribute("aria-sort") == "ascending"
    button.click()
    assert column(1) == ["10 ± 0.5", "9 ± 0.5", "-0.001", "-"]
    table.locator("thead button").nth(2).click()
    assert column(2) == ["2", "3 of 28", "12 of 28", "diverged"]
    table.locator("thead button").nth(0).click()
    assert column(0) == ["CASAL", "exact draws", "projected", "WeightedCASAL"]

    chip = page.locator("#alpha .chip", has_text="projected")
    chip.click()
    assert chip.get_attribute("aria-pressed") == "false"
    assert column(0) == ["CASAL", "exact draws", "WeightedCASAL"]
    assert page.locator("#beta tr[data-method=projected]").is_visible()
    page.locator("#alpha [data-all=false]").click()
    assert column(0) == ["exact draws"]
    page.locator("#alpha [data-all=true]").click()
    assert len(column(0)) == 4
    assert said == []
    page.close()


def test_pictures_enlarge_and_the_explorer_follows_its_sliders(browser: Any, page_file: str) -> None:
    page, said = open_page(browser, page_file, 390, "light")
    page.locator("#alpha .zoom").first.click()
    image = page.locator("#viewer img")
    fitted = image.bounding_box()["width"]
    image.click()
    assert image.bounding_box()["width"] > 1.5 * fitted
    page.keyboard.press("Escape")
    assert not image.is_visible()

    data = html_explorer.explorer_data()

    def drag(rho: int, tau: int) -> list[str]:
        for name, value in (("rho", rho), ("tau", tau)):
            page.evaluate(
                "([name, value]) => { const e = document.getElementById(name); e.value = value; "
                "e.dispatchEvent(new Event('input')); }",
                [name, value],
            )
        row = page.locator("#laws-table tbody tr").nth(list(data["laws"]).index("Algorithm 1"))
        return [str(text) for text in row.locator("td").all_inner_texts()]

    mean, spread = data["laws"]["Algorithm 1"][0][20]
    assert [float(text) for text in drag(20, 0)[:2]] == pytest.approx([mean, spread], abs=1e-4)
    before = page.locator("#laws .law").nth(4).get_attribute("d")
    assert drag(40, 7)[0] == "diverges"
    assert page.locator("#laws .law").first.get_attribute("d") == ""
    assert page.locator("#laws .law").nth(4).get_attribute("d") != before
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert said == []
    page.close()
