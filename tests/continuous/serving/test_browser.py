"""The page of a service, and reports, in Debian's Chromium: ``benchmarks/release.sh page``."""

import contextlib
import re
import shutil

import pytest
from tests import factories

from rlforge.continuous.decisions.store import TrajectoryStore
from rlforge.continuous.serving.metrics import Metrics
from rlforge.continuous.serving.server import watched
from rlforge.show.report import write_report

from .conftest import until

pytestmark = [
    pytest.mark.release,
    pytest.mark.skipif(
        shutil.which("chromium") is None, reason="no chromium here: apt-get install chromium"
    ),
]
chromium = pytest.importorskip("tests.harness.chromium", reason="pip install websockets")

#: Pairs of a figure's caption, plot and legend, or of two figures, that lie on each other.
OVERLAPS = """(() => {
  const box = (element) => element.getBoundingClientRect();
  const on = (a, b) => a.right > b.left + 1 && b.right > a.left + 1 &&
    a.bottom > b.top + 1 && b.bottom > a.top + 1;
  const pairs = (all) => all.flatMap((one, at) => all.slice(at + 1).map((other) => [one, other]));
  const found = [];
  const figures = [...document.querySelectorAll("figure")].filter((one) => box(one).width);
  for (const figure of figures) {
    const parts = ["figcaption", ".u-wrap", ".u-legend"].map((name) => figure.querySelector(name));
    for (const [one, other] of pairs(parts.filter(Boolean))) {
      if (on(box(one), box(other))) found.push(figure.querySelector("figcaption")?.textContent);
    }
  }
  for (const [one, other] of pairs(figures)) {
    if (on(box(one), box(other))) found.push("figures");
  }
  return found;
})()"""
#: How far the page is wider than the screen, and figures without a drawing.
TOO_WIDE = "document.documentElement.scrollWidth - innerWidth"
UNDRAWN = """[...document.querySelectorAll(".plot")].filter(
  (plot) => plot.clientWidth && !plot.querySelector("canvas")).length"""


@pytest.fixture
async def tab(tmp_path):
    async with chromium.browsing(tmp_path / "profile") as opened:
        yield opened


@pytest.fixture
def shown(market, market_engine, serving):
    """The service of a run, and the address of its page."""

    @contextlib.asynccontextmanager
    async def show(run):
        said = []
        async with (
            serving(run) as service,
            watched(service, market_engine, market, Metrics(), said.append),
        ):
            await until(lambda: bool(said))
            yield service, re.search(r"http\S+", said[0])[0]

    return show


async def looks_right(tab):
    colours = set()
    for width in (390, 1280):
        for dark in (False, True):
            await tab.look(width, dark=dark)
            await tab.until(f"{UNDRAWN} === 0")
            assert await tab.run(TOO_WIDE) <= 0, width
            assert await tab.run(OVERLAPS) == [], width
            colours.add(await tab.run("getComputedStyle(document.body).backgroundColor"))
    assert len(colours) == 2
    assert tab.errors == []


async def test_the_page_fits_phones_and_desks_and_loads_nothing_else(run, shown, tab):
    long = factories.decision(
        9, timestamp=4e9, window_id="2099-01-01-00:00", observation="word " * 400
    )
    with TrajectoryStore(run / "store") as store:
        store.append([long])
    async with shown(run) as (_, address):
        await tab.open(address)
        await tab.until("document.querySelectorAll('canvas').length >= 3")
        await looks_right(tab)
        assert {*tab.asked} <= {address, "data:,"}


async def test_the_button_rolls_back_for_who_knows_the_token(run, shown, tab):
    async with shown(run) as (service, address):
        await tab.open(address)
        await tab.click("input[type=password]")
        await tab.type("a wrong one")
        async with tab.loading():
            await tab.click("button")
        assert "not the administrators' token" in await tab.run("document.body.innerText")
        assert service.current.uid == "deploy-2"
        tab.errors.clear()  # the console counts the answer 401
        await tab.click("input[type=password]")
        await tab.type((run / "deployments" / "admin_token").read_text().strip())
        async with tab.loading():
            await tab.click("button")
        assert service.current.uid == "deploy-1"
        text = await tab.run("document.body.innerText")
        assert "rolled back on the page" in text
        assert "Roll back to deploy-0" in text
        assert await tab.run("location.href") == address
        assert await tab.run("document.querySelector('input[type=password]').value") == ""
        assert tab.errors == []


async def test_what_is_new_comes_without_a_reload_and_leaves_what_is_typed(run, shown, tab):
    async with shown(run) as (service, address):
        await tab.open(address)
        await tab.run("window.here = true")
        await tab.click("input[type=password]")
        await tab.type("half a tok")
        with TrajectoryStore(run / "store") as store:
            made = factories.decision(
                9, "agent-77", None, timestamp=4e9, window_id="2099-01-01-00:00"
            )
            store.append([made])
        await tab.until("document.body.innerText.includes('agent-77')")
        # The part in use is left as it is, and renewed afterwards.
        await service.rollback()
        await tab.run("renew()")
        assert await tab.run("document.querySelector('input[type=password]').value") == "half a tok"
        await tab.run("document.activeElement.blur()")
        await tab.until("document.body.innerText.includes('Roll back to deploy-0')")
        await tab.until(f"{UNDRAWN} === 0")
        assert await tab.run("window.here")
        assert await tab.run("document.querySelector('#lost').hidden")
        assert tab.errors == []
    await tab.until("!document.querySelector('#lost').hidden")


@pytest.mark.parametrize("recorded", ["golden_run", "golden_market"])
async def test_reports_fit_and_have_no_errors(request, recorded, tab, tmp_path):
    report = write_report(request.getfixturevalue(recorded), tmp_path / "report.html")
    await tab.open(report.as_uri())
    await tab.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    await looks_right(tab)
    assert {*tab.asked} <= {report.as_uri(), "data:,"}
