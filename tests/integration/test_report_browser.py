"""The report page in a real browser: it lays out, in light, dark, on paper and on a phone."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sm120patch.fleet import page as fleet_page
from sm120patch.fleet.compare import compare
from sm120patch.fleet.overview import overview
from sm120patch.report.page import render
from tests.support.facts import NOW, drifted, node, nodes, parsed
from tests.unit.test_report import HOSTILE, evidence_data, subject

api = pytest.importorskip("playwright.sync_api")
BROWSER = os.environ.get("SM120PATCH_TEST_BROWSER") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed"),
]

CONTRAST = """
() => {
  const light = (colour) => {
    const [r, g, b] = colour.match(/[0-9.]+/g).slice(0, 3).map((part) => {
      const share = part / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if (!colour.endsWith(", 0)") && colour !== "transparent") return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const found = [];
  for (const node of document.querySelectorAll("body *")) {
    const said = [...node.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
    if (!said || node.closest("title")) continue;
    const style = getComputedStyle(node);
    const one = light(node instanceof SVGElement ? style.fill : style.color);
    const two = light(behind(node));
    const ratio = (Math.max(one, two) + 0.05) / (Math.min(one, two) + 0.05);
    found.push([ratio, node.tagName + " " + node.textContent.trim().slice(0, 30)]);
  }
  return found.sort((a, b) => a[0] - b[0]);
}
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with api.sync_playwright() as engine:
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        found = engine.chromium.launch(executable_path=BROWSER, args=options)
        yield found
        found.close()


@pytest.fixture
def address(tmp_path: Path) -> str:
    (tmp_path / "page.html").write_text(render(subject(kind="simulated")), "utf-8")
    return (tmp_path / "page.html").as_uri()


@pytest.fixture
def fleet(tmp_path: Path) -> str:
    """Page about a fleet with every colour: alike, differing, unequal, unknown; two compared."""
    away = parsed(b"<b>", "away")
    every = [*nodes(4, groups=["s0"]), node("gpu-50", drifted, groups=["s0"]), away]
    html = fleet_page.render(overview(every), compare(every[0], every[-2]), NOW, "1")
    (tmp_path / "fleet.html").write_text(html, "utf-8")
    return (tmp_path / "fleet.html").as_uri()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1300])
def test_the_page_of_a_fleet_can_be_read(browser: Any, fleet: str, scheme: str, width: int) -> None:
    page = browser.new_page(color_scheme=scheme, viewport={"width": width, "height": 800})
    page.goto(fleet)
    found = page.evaluate(CONTRAST)
    assert len(found) > 50 and found[0][0] >= 4.5, found[0]
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    rows = [row.inner_text().split()[0] for row in page.locator("tbody tr").all()]
    assert rows.index("gpu-50") < rows.index("away") < rows.index("gpu-00"), "outliers first"
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_word_can_be_read(browser: Any, address: str, scheme: str) -> None:
    page = browser.new_page(color_scheme=scheme)
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(address)
    found = page.evaluate(CONTRAST)
    assert len(found) > 50
    assert found[0][0] >= 4.5, found[0]
    assert said == []
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 27)"}[scheme]
    page.close()


@pytest.mark.parametrize("width", [360, 1000])
def test_nothing_sticks_out_and_charts_have_their_marks(
    browser: Any, address: str, width: int
) -> None:
    page = browser.new_page(viewport={"width": width, "height": 800})
    page.goto(address)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    marks = page.locator("svg .mark")
    assert marks.count() == 8
    for mark in marks.all():
        box, chart = mark.bounding_box(), mark.locator("xpath=ancestor::*[name()='svg']")
        frame = chart.bounding_box()
        assert frame["x"] <= box["x"] and box["x"] + box["width"] <= frame["x"] + frame["width"]
        assert frame["y"] <= box["y"] and box["y"] + box["height"] <= frame["y"] + frame["height"]
    lines = page.locator("svg polyline")
    assert lines.count() == 8 + 3 * 2 + 4
    loose = page.evaluate(
        "[...document.querySelectorAll('svg polyline')].filter((l) => { const b = l.getBBox();"
        " const v = l.ownerSVGElement.viewBox.baseVal;"
        " return b.x < 96 || b.x + b.width > 700 || b.y < 0 || b.y + b.height > v.height;"
        " }).length"
    )
    assert loose == 0
    outside = page.evaluate(
        "[...document.querySelectorAll('svg text')].filter((t) => { const b = t.getBBox();"
        " return b.x < 0 || b.x + b.width > 720; }).map((t) => t.textContent)"
    )
    assert outside == []
    page.close()


def test_it_prints_on_white_paper_whatever_the_screen(browser: Any, address: str) -> None:
    page = browser.new_page(color_scheme="dark")
    page.goto(address)
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate(CONTRAST)[0][0] >= 4.5
    assert page.pdf(format="A4").startswith(b"%PDF-")
    page.close()


def test_hostile_text_runs_nothing_in_a_browser(browser: Any, tmp_path: Path) -> None:
    data = evidence_data()
    data["reasons"] = [HOSTILE, "<svg onload=document.title='pwned'>"]
    data["workloads"][0]["name"] = HOSTILE
    path = tmp_path / "page.html"
    path.write_bytes(render(subject(data, sets=(HOSTILE,))).encode("utf-8", "replace"))
    page = browser.new_page()
    asked: list[str] = []
    page.on("dialog", lambda dialog: (asked.append(dialog.message), dialog.dismiss()))
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.goto(path.as_uri())
    assert asked == [] and requests == [path.as_uri()]
    assert "pwned" not in page.title()
    assert page.locator("script, img").count() == 0
    assert "<script>alert(1)</script>" in page.inner_text("body")
    page.close()
