"""Pages in headless Chromium: every plot drawn, nothing beside the screen, no error, no network.

MATINEE_SCREENSHOTS names a folder where the pictures are kept.
"""

import os
from pathlib import Path

import pytest
from browser import Browser, find_browser
from folders import write_run

from matinee.measure.draw.figures import Bars, Lines, Series, Stacks
from matinee.measure.report.write import write_report
from matinee.measure.result import Part, Result, Table, write_result

pytest.importorskip("matplotlib")

PLOTS = """[...document.querySelectorAll('svg[role="img"]')].map(svg => {
  const box = svg.getBoundingClientRect();
  const marks = [...svg.querySelectorAll('path, rect, circle, text, use, polyline')]
    .filter(mark => { const b = mark.getBoundingClientRect(); return b.width + b.height > 0; });
  return {about: svg.getAttribute('aria-label'), shown: svg.checkVisibility(), width: box.width,
          height: box.height, left: box.left, right: box.right, marks: marks.length};
})"""
BEYOND = """[...document.querySelectorAll('body *')].filter(one =>
  !one.closest('.scroll, pre, svg') && one.getBoundingClientRect().right > {width} + 0.5
).map(one => one.outerHTML.slice(0, 80))"""
COLOURS = "['backgroundColor', 'color'].map(key => getComputedStyle(document.body)[key])"
ADDRESSES = "performance.getEntriesByType('resource').map(one => one.name)"


@pytest.fixture(scope="module")
def browser():
    path = find_browser()
    if path is None:
        pytest.skip("no Chromium is installed (apt install chromium)")
    tab = Browser(path)
    yield tab
    tab.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory, pack):
    """A page of each kind, and how many plots are on it."""
    root = tmp_path_factory.mktemp("pages")
    runs = [write_run(root / name, pack, evaluated=True) for name in ("first", "second")]
    lines = Lines("falling lines", "x", "y", [Series("one", [1, 2], [3.0, 1.0]),
                                              Series("two", [1, 2], [2.0, 1.5])])  # fmt: skip
    bars = Bars("two bars", ["a", "b"], "seconds", [Series("", [], [1.0, 2.0])])
    stacks = Stacks("a stack", ["step"], [{"forward": 1.0, "backward": 2.0}], "seconds", {})
    table = Table(["name", *(f"column {i}" for i in range(9))], [["row", *"123456789"]])
    part = Part("part", "A part", "Text.", [table], {"l": lines, "b": bars, "s": stacks})
    result = Result("result", "A result " + "with a long title " * 3, "Lead.", [part], {"x": 1})
    return {
        "run": (write_report(root / "run.html", runs[:1]), 7),
        "comparison": (write_report(root / "comparison.html", runs), 4 * 4 + 4),
        "result": (write_result(result, root / "result"), 3),
    }


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [360, 1200])
@pytest.mark.parametrize("kind", ["run", "comparison", "result"])
def test_a_page_shows_every_plot_within_the_screen(browser, pages, kind, width, dark):
    path, count = pages[kind]
    browser.open(path, width=width, dark=dark)
    plots = browser.run(PLOTS)
    assert len(plots) == count
    shown = [plot for plot in plots if plot["shown"]]
    # of a comparison's curves one axis of four is shown
    assert len(shown) == (count - 12 if kind == "comparison" else count)
    for plot in shown:
        assert plot["width"] > 250 and plot["height"] > 40, plot
        assert 0 <= plot["left"] < plot["right"] <= width, plot
        assert plot["marks"] > 5, plot
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.run(beyond(width)) == []
    assert browser.run(ADDRESSES) == []
    assert browser.errors == []
    background, ink = (rgb(colour) for colour in browser.run(COLOURS))
    assert (sum(background) < sum(ink)) == dark
    if folder := os.environ.get("MATINEE_SCREENSHOTS"):
        scheme = "dark" if dark else "light"
        browser.screenshot(Path(folder) / f"{kind}-{width}-{scheme}.png")


def beyond(width):
    """What reaches over the right edge, but for what scrolls in a box of its own."""
    return BEYOND.replace("{width}", str(width))


def rgb(colour):
    return [float(part) for part in colour.partition("(")[2].rstrip(")").split(",")[:3]]


def test_the_axis_of_curves_is_chosen_without_a_script(browser, pages):
    browser.open(pages["comparison"][0], width=360, dark=False)
    browser.ask("Emulation.setScriptExecutionDisabled", value=True)
    for number, axis in enumerate(("epochs", "steps", "clips", "hours")):
        box = browser.run(
            f"(() => {{ const b = document.querySelectorAll('.switch label')[{number}];"
            "b.scrollIntoView(); const r = b.getBoundingClientRect();"
            "return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            browser.ask(
                "Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left",
                clickCount=1,
            )  # fmt: skip
        told = [p["about"] for p in browser.run(PLOTS) if p["shown"] and " over " in p["about"]]
        curves = [about for about in told if not about.startswith("Accuracy over")]
        assert len(curves) == 4
        assert all(f" over {axis}." in about for about in curves), curves
    browser.ask("Emulation.setScriptExecutionDisabled", value=False)


def test_errors_of_a_page_are_seen(browser, tmp_path):
    """What the other tests rely on: a broken page is told from a sound one."""
    page = tmp_path / "broken.html"
    page.write_text(
        "<script>console.error('bad'); null.x</script><img src='none.png'>"
        "<div style='width: 900px'>wide</div><svg role='img' aria-label='empty'></svg>"
    )
    browser.open(page, width=360, dark=False)
    assert len(browser.errors) >= 3
    assert browser.run(beyond(360))
    assert browser.run(PLOTS)[0]["marks"] == 0
