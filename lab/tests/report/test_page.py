"""The page of all outcomes: what it holds, and how a browser shows it."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest
from markupsafe import escape

from casal_lab.experiment import Claim, Column, Experiment, Outcome, ResultTable
from casal_lab.problems import gaussian_line as line
from casal_lab.report import cache, explorer, page
from casal_lab.report.page import write_page
from casal_lab.report.reproduce import Ran, reproduce

from .bench import Bench


def test_the_page_asks_nothing_of_the_network(bench: Bench, tmp_path: Path) -> None:
    reproduce(bench.registry, tmp_path)
    page = write_page(bench.registry, tmp_path).read_text(encoding="utf-8")
    assert not re.search(r"""(?:src|href)=["'](?!data:|#)|@import|url\(|fetch\(|XMLHttp""", page)


def test_everything_is_escaped(bench: Bench, tmp_path: Path) -> None:
    """Also what only a file on disk says: names, stamps, settings, cells, messages."""
    evil = "<img src=x onerror=alert(1)>\"'&"
    column = Column("method", evil)
    tables = [ResultTable(evil, [column, Column("b", evil)], [{"method": evil, "b": evil}, {"method": "b"}], evil)]
    claim = Claim(evil, evil, evil, evil)
    outcome = Outcome("alpha", tables, [claim], {}, {evil: evil, "more": {evil: [evil]}}, 1.0)
    cache.save(tmp_path, bench.registry["alpha"], True, outcome)
    record = tmp_path / "quick" / "alpha" / "record.json"
    stamp = {key: evil for key in ("key", "question", "made", "version", "machine")}
    record.write_text(json.dumps({**json.loads(record.read_text(encoding="utf-8")), **stamp}), encoding="utf-8")
    experiment = Experiment(evil, evil, (evil,), bench.registry["beta"].run)
    page = write_page({"alpha": bench.registry["alpha"], evil: experiment}, tmp_path, {evil: evil})
    text = page.read_text(encoding="utf-8")
    assert "<img src=x" not in text
    assert text.count("&lt;img src=x onerror=alert(1)&gt;&#34;&#39;&amp;") > 20
    assert "&amp;lt;" not in text  # nor escaped twice


class Tags(HTMLParser):
    """All tags of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))


KEPT = ("key", "style", "pictures", "motions", "name", "colour", "x", "y", "marks", "values", "heights")
"""Not shown to a reader, or refused if they are not what they should be."""


@pytest.mark.parametrize("evil", ["<script>alert(1)</script>", '"><script>T()</script>', "'onload=alert(1) x='"])
def test_no_text_of_a_file_becomes_a_tag_or_an_attribute(evil: str, bench: Bench, tmp_path: Path) -> None:
    """Read as a browser reads it: every text of the files is put in place, one page without and one with it."""
    outcome = bench.registry["alpha"].run(True, None, lambda line: None)
    record = cache.save(tmp_path, bench.registry["alpha"], True, outcome).folder
    before = Tags(write_page({}, tmp_path).read_text(encoding="utf-8")).seen

    def spoiled(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {name: spoiled(part, name) for name, part in value.items()}
        if isinstance(value, list):
            return [spoiled(part, key) for part in value]
        if not isinstance(value, str) or not value or key in KEPT:  # a claim without a source is of the other kind
            return value
        return evil + value if key == "made" else value + evil  # of which the page shows the first letters only

    for name in ("record.json", "results.json", "motions.json"):
        text = (record / name).read_text(encoding="utf-8")
        (record / name).write_text(json.dumps(spoiled(json.loads(text))), encoding="utf-8")
    page = write_page({}, tmp_path).read_text(encoding="utf-8")
    after = Tags(page).seen
    known = {"b", "i", "span", "em"}  # a verdict that is none of the three has no sign
    assert [tag for tag, _ in after if tag not in known] == [tag for tag, _ in before if tag not in known]
    assert {key for _, attrs in after for key in attrs} <= {key for _, attrs in before for key in attrs}
    assert sum(tag == "script" for tag, _ in after) == 3  # one of them the numbers of the motion
    assert page.count(str(escape(evil))) > 20


def test_an_outcome_of_an_unknown_experiment_is_shown_and_said_to_be_so(bench: Bench, tmp_path: Path) -> None:
    reproduce(bench.registry, tmp_path)
    text = write_page({"alpha": bench.registry["alpha"]}, tmp_path).read_text(encoding="utf-8")
    assert "Does beta hold?" in text
    assert text.count("no experiment of this name is known here") == 1
    assert "the source has changed" not in text


def test_a_drawing_with_very_many_points_goes_in_as_raster(tmp_path: Path) -> None:
    figure, axis = plt.subplots(figsize=(4, 3))
    axis.plot([0, 1], [0, 1])
    figure.savefig(tmp_path / "a.png", dpi=160)
    figure.savefig(tmp_path / "a.svg")
    plt.close(figure)
    small = page.picture(tmp_path / "a.png")
    svg = (tmp_path / "a.svg").read_text(encoding="utf-8")
    (tmp_path / "a.svg").write_text(svg + "<!--" + "x" * page.LARGEST + "-->", encoding="utf-8")
    large = page.picture(tmp_path / "a.png")
    assert small.source.startswith("data:image/svg+xml")
    assert large.source.startswith("data:image/png")
    assert small[1:] == large[1:] == (384, 288)


def test_the_laws_of_the_explorer() -> None:
    """Against the solution of (P), known by a 2 x 2 inverse; and the step that must diverge does."""
    data = explorer.explorer_data()
    exact = data["exact"]
    for k in (0, 20, 40):
        rho = data["rho"][k]
        mean, spread = data["densities"]["CASAL, common dual"][0][k]
        (a, b), (_, d) = line.PRECISION
        assert mean == pytest.approx(exact[0], abs=1e-8)
        assert spread**2 == pytest.approx(0.5 * (a + rho) / ((a + rho) * d - b * b), rel=1e-3)
    assert data["densities"]["Algorithm 1"][-1][-1] is None
    assert data["densities"]["CASAL"][-1][-1] is not None
    assert data["densities"]["Algorithm 1"][0][-1][1] ** 2 == pytest.approx(0.5 * exact[1] ** 2, rel=0.1)


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

    data = explorer.explorer_data()

    def drag(rho: int, tau: int) -> list[str]:
        for name, value in (("rho", rho), ("tau", tau)):
            page.evaluate(
                "([name, value]) => { const e = document.getElementById(name); e.value = value; "
                "e.dispatchEvent(new Event('input')); }",
                [name, value],
            )
        row = page.locator("#densities-table tbody tr").nth(list(data["densities"]).index("Algorithm 1"))
        return [str(text) for text in row.locator("td").all_inner_texts()]

    mean, spread = data["densities"]["Algorithm 1"][0][20]
    assert [float(text) for text in drag(20, 0)[:2]] == pytest.approx([mean, spread], abs=1e-4)
    before = page.locator("#densities .density").nth(4).get_attribute("d")
    assert drag(40, 7)[0] == "diverges"
    assert page.locator("#densities .density").first.get_attribute("d") == ""
    assert page.locator("#densities .density").nth(4).get_attribute("d") != before
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert said == []
    page.close()


def state(page: Any) -> tuple[str, str, str]:
    """Label, button and value of the first motion."""
    motion = page.locator(".motion").first
    return (
        motion.locator("output").inner_text(),
        motion.locator(".play").inner_text(),
        motion.locator("input").input_value(),
    )


PIXELS = """([k, red, green, blue]) => {
  const canvas = document.querySelectorAll(".motion canvas")[k];
  const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  let count = 0;
  for (let i = 0; i < data.length; i += 4) {
    const away = [red, green, blue].map((part, c) => Math.abs(data[i + c] - part));
    count += data[i + 3] > 128 && Math.max(...away) < 20;
  }
  return count;
}"""
FAILED = [0xD5, 0x5E, 0x00]


def test_a_motion_plays_once_and_stops_at_its_end(browser: Any, page_file: str) -> None:
    page, said = open_page(browser, page_file, 1400, "light")
    assert state(page) == ("start", "Play", "0")
    page.locator(".motion canvas").first.scroll_into_view_if_needed()
    page.wait_for_function("document.querySelector('.motion .play').textContent === 'Pause'")
    page.locator(".motion .play").first.click()
    assert state(page)[1] != "Pause"
    page.locator(".motion input").first.fill("2")
    assert state(page) == ("two steps", "Play", "2")
    page.locator(".motion .play").first.click()
    page.wait_for_function("document.querySelector('.motion .play').textContent === 'Replay'")
    assert state(page) == ("the end", "Replay", "3")
    assert said == []
    page.close()


def test_a_motion_is_still_at_its_end_for_those_who_want_no_motion(browser: Any, page_file: str) -> None:
    page = browser.new_page(viewport={"width": 1400, "height": 844}, reduced_motion="reduce")
    page.goto(page_file)
    page.locator(".motion canvas").first.scroll_into_view_if_needed()
    page.wait_for_timeout(200)
    assert state(page) == ("the end", "Replay", "3")
    page.close()


def test_a_motion_follows_its_keys_and_tells_what_it_shows(browser: Any, page_file: str) -> None:
    page = browser.new_page(viewport={"width": 1400, "height": 844}, reduced_motion="reduce")
    page.goto(page_file)
    canvas = page.locator(".motion canvas").first
    slider, button = page.locator(".motion input").first, page.locator(".motion .play").first
    assert canvas.get_attribute("aria-label") == "CASAL, the end, 3 of 3 succeed, 0 fail"
    assert page.evaluate(PIXELS, [0, *FAILED]) == 0
    page.locator(".motion canvas").nth(1).click()
    assert state(page)[1] == "Pause"
    page.keyboard.press(" ")
    slider.focus()
    page.keyboard.press("Home")
    assert state(page) == ("start", "Play", "0")
    page.keyboard.press("ArrowRight")
    assert state(page) == ("one step", "Play", "1")
    assert slider.get_attribute("aria-valuetext") == "one step"
    assert canvas.get_attribute("aria-label") == "CASAL, one step, 1 of 3 succeed, 1 fail"
    assert page.locator(".tally").first.inner_text().split() == ["✓", "1", "✗", "1"]
    assert page.evaluate(PIXELS, [0, *FAILED]) > 50
    assert page.evaluate(PIXELS, [1, *FAILED]) == 0
    button.focus()
    for _ in range(2):
        page.keyboard.press("ArrowLeft")
    assert state(page) == ("start", "Play", "0")
    page.keyboard.press(" ")
    assert state(page)[1] == "Pause"
    page.locator(".motion summary").first.click()
    assert page.locator(".motion details td").first.inner_text() == "2"
    page.close()


COLOUR = """([fx, fy]) => {
  const canvas = document.querySelectorAll(".motion canvas")[1];
  const [x, y] = [46 + fx * (canvas.clientWidth - 54), 8 + fy * (canvas.clientHeight - 44)].map(Math.round);
  return [...canvas.getContext("2d").getImageData(x, y, 1, 1).data];
}"""
"""The colour (red, green, blue, alpha) of the second panel at a share of the way to the right and down its axes."""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_what_lies_behind_and_beside_a_motion(browser: Any, page_file: str, scheme: str) -> None:
    """The backdrop is where it should be, and shares and histogram follow the frame."""
    page = browser.new_page(viewport={"width": 1400, "height": 844}, reduced_motion="reduce", color_scheme=scheme)
    page.goto(page_file)
    above, below, corner = (page.evaluate(COLOUR, at)[3] for at in ([0.05, 0.03], [0.05, 0.55], [0.95, 0.95]))
    assert below == 0 < above < 255  # the image is dark at the top alone
    assert 0.3 * 255 < corner < 0.5 * 255  # the area, 0.4 of its colour
    ink = page.evaluate("getComputedStyle(document.querySelector('.motion')).getPropertyValue('--exact')")
    light = luminance("rgb({}, {}, {})".format(*(int(ink.strip()[k : k + 2], 16) for k in (1, 3, 5))))
    assert light > 0.7 if scheme == "dark" else light < 0.1
    panel = page.locator(".motion .view").nth(1)
    assert panel.locator(".now").all_inner_texts() == ["25 %", "75 %"]
    assert page.locator(".motion canvas").nth(1).get_attribute("aria-label") == (
        "points, the end, low 25 % (exact 25 %), high 75 % (exact 75 %)"
    )
    bars = "(() => { const c = document.querySelector('.histogram'); const p = c.getContext('2d');"
    bars += " return p.getImageData(60, 10, 1, 1).data[3]; })()"
    assert page.evaluate(bars) > 150  # full height at the end
    page.locator(".motion input").first.fill("0")
    assert panel.locator(".now").all_inner_texts() == ["90 %", "10 %"]
    assert panel.locator(".gauge i").first.evaluate("(bar) => bar.style.width") == "90%"
    assert page.evaluate(bars) == 0
    assert page.locator(".motion .legend").first.inner_text().split("\n") == ["the corner", "the floor", "dense above"]
    page.close()


def test_a_finger_moves_through_time(browser: Any, page_file: str) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 844}, reduced_motion="reduce", has_touch=True)
    page.goto(page_file)
    canvas = page.locator(".motion canvas").first
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    x, y = box["x"] + 0.8 * box["width"], box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x - 0.55 * box["width"], y, steps=4)
    page.mouse.up()
    assert state(page) == ("one step", "Play", "1")  # 1.25 times the way, of three frames: two frames back
    page.touchscreen.tap(x, y)
    assert state(page)[1] == "Pause"
    page.close()


@pytest.mark.parametrize(("width", "columns"), [(390, 1), (1400, 2)])
def test_the_canvases_fit_and_are_sharp(browser: Any, page_file: str, width: int, columns: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": 844}, device_scale_factor=2)
    page.goto(page_file)
    found = page.evaluate(
        "[...document.querySelectorAll('.motion canvas')].map((c) => "
        "[c.getBoundingClientRect().left, c.clientWidth, c.width])"
    )
    assert len({left for left, *_ in found}) == columns
    assert all(sharp == 2 * wide for _, wide, sharp in found)
    page.set_viewport_size({"width": 700, "height": 844})
    page.wait_for_timeout(100)
    assert page.evaluate(
        "(() => { const c = document.querySelector('canvas'); return c.width === 2 * c.clientWidth; })()"
    )
    page.close()
