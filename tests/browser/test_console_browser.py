"""The console as a person meets it, in a real browser."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import psycopg
import pytest
from playwright.sync_api import Page, expect
from psycopg import sql
from tests.browser.conftest import SCREENSHOTS, Visitor
from tests.consoles import PASSWORD, READINGS, Shop
from tests.support import value

from modak.catalog import leadership
from modak.embedded.postgres import Cluster
from modak.failpoints import armed
from modak.worker.lease import leading

pytestmark = [pytest.mark.inline]
Visit = Callable[..., Visitor]
PAGES = {"overview": "/", "table": "/tables/public.orders", "operations": "/operations", "sql": "/sql?sql=select+1"}


def test_the_first_visit(visit: Visit) -> None:
    visitor = visit()
    visitor.go("/tables/public.orders")
    page = visitor.page
    expect(page).to_have_title("Log in · Modak")
    expect(page.get_by_label("Password")).to_be_focused()
    visitor.shot("login")
    page.keyboard.type("not it")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_have_text("This is not the password.")
    visitor.shot("login-wrong")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("public.orders")
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_label("Password")).to_be_visible()
    visitor.go("/")
    expect(page.get_by_label("Password")).to_be_visible()


def test_a_tiering_run_is_seen_live(visit: Visit, made: Shop) -> None:
    visitor, other = visit(), visit()
    visitor.log_in("/tables/public.readings")
    other.log_in("/")
    page = visitor.page
    expect(page.locator("#tiles .tile-figure").first).to_have_text("0")
    page.evaluate("window.neverLoadedAgain = true")
    reached, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        reached.set()
        assert go_on.wait(60)

    with armed("tier.before_advance", hold):
        runner = threading.Thread(target=made.tier, args=[READINGS])
        runner.start()
        assert reached.wait(60)
        expect(page.locator("#state")).to_contain_text("tiering: committed")
        expect(page.locator("#map .state-tiering").first).to_be_attached()
        expect(other.page.locator("#tables")).to_contain_text("tiering")
        visitor.shot("table-while-tiering")
        go_on.set()
        runner.join(60)
    expect(page.locator("#tiles .tile-figure").first).to_have_text("2,000")
    expect(page.locator("#map")).to_contain_text("T 2,000")
    expect(page.locator("#announce")).to_contain_text("cut-line 2,000")
    expect(other.page.locator("#tables")).to_contain_text("2,000")
    assert page.evaluate("window.neverLoadedAgain") is True


def test_a_change_of_leaders_is_seen_live(visit: Visit, made: Shop) -> None:
    visitor = visit()
    visitor.log_in("/")
    workers, mine = visitor.page.locator("#workers"), leadership.holder_name()
    expect(workers).to_contain_text("No worker has led yet.")
    lease = partial(made.app.connection, application=leadership.lease_name())
    with made.app.connection(application="modak lease other-host/4711"):
        with leading(lease, 15.0, threading.Event()):
            expect(workers).to_contain_text(f"{mine} leads this one")
            expect(workers).to_contain_text("other-host/4711 stands by")
            visitor.shot("overview-leader")
        expect(workers).to_contain_text("Nobody leads")
        visitor.shot("overview-without-leader")
    with made.connection() as connection:
        connection.execute("delete from modak.leader")


def test_a_query_is_run(visit: Visit) -> None:
    visitor = visit()
    visitor.log_in("/sql")
    page = visitor.page
    page.get_by_label("Query").fill("select count(*) as orders, max(note) from public.orders")
    page.keyboard.press("Control+Enter")
    rows = page.get_by_role("region", name="Rows")
    expect(rows.get_by_role("cell").first).to_have_text("900")
    expect(page.get_by_role("status").filter(has_text="1 row, by the gateway")).to_be_visible()
    expect(page.locator("#route-title")).to_be_visible()
    visitor.shot("sql-result")
    page.get_by_label("Query").fill("select nothing\nfrom public.orders")
    page.get_by_role("button", name="Run").click()
    alert = page.get_by_role("alert").filter(has_text="nothing")
    expect(alert).to_contain_text("does not exist")
    expect(alert).to_be_focused()
    expect(page.get_by_label("Query")).to_have_value("select nothing\nfrom public.orders")
    visitor.shot("sql-error")
    page.get_by_label("Query").fill("delete from public.orders")
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_role("alert").filter(has_text="only queries run here")).to_be_visible()


def test_a_policy_is_submitted(visit: Visit, made: Shop) -> None:
    visitor = visit()
    visitor.log_in("/tables/public.orders")
    page = visitor.page
    page.get_by_label("Lag", exact=True).fill("whenever")
    page.get_by_role("button", name="Change the policy").click()
    refused = page.get_by_role("alert").filter(has_text="was not changed")
    expect(refused).to_be_focused()
    expect(page.get_by_label("Lag", exact=True)).to_have_value("whenever")
    visitor.shot("policy-refused")
    page.get_by_label("Lag", exact=True).fill("2 months")
    page.get_by_label("Premake").fill("1")
    page.get_by_role("button", name="Change the policy").click()
    expect(page.get_by_role("status").filter(has_text="The policy is changed.")).to_be_visible()
    expect(page.get_by_label("Lag", exact=True)).to_have_value("2 mons")
    with made.connection() as connection:
        assert value(connection, "select tier_lag || ' ' || premake from modak.tables where table_name = 'orders'") == "2 mons 1"
    page.get_by_role("button", name="Maintain").click()
    expect(page.get_by_role("status").filter(has_text="Maintenance is requested")).to_be_visible()
    with made.connection() as connection:
        assert value(connection, "select requested_by from modak.maintenance_requests") == "console"


def test_errors_are_shown_well_and_pass(visit: Visit, made: Shop, cluster: Cluster) -> None:
    visitor = visit()
    visitor.log_in()
    page = visitor.page
    visitor.go("/tables/public.nothing")
    expect(page.get_by_role("heading", level=1)).to_contain_text("is not a registered table")
    name = str(psycopg.conninfo.conninfo_to_dict(made.dsn)["dbname"])
    with psycopg.connect(cluster.dsn(), autocommit=True) as admin:
        admin.execute(sql.SQL("alter database {} allow_connections false").format(sql.Identifier(name)))
        try:
            visitor.go("/")
            expect(page.get_by_role("heading", level=1)).to_have_text("Postgres does not answer")
            visitor.shot("postgres-away")
        finally:
            admin.execute(sql.SQL("alter database {} allow_connections true").format(sql.Identifier(name)))
    expect(page.get_by_role("heading", level=1)).to_have_text("Tables")


def focused(page: Page) -> str:
    return str(page.evaluate("(document.activeElement.innerText || document.activeElement.id || document.activeElement.tagName).trim()"))


def tab_to(page: Page, text: str, most: int = 60) -> None:
    for _ in range(most):
        page.keyboard.press("Tab")
        if focused(page) == text:
            visible = page.evaluate("getComputedStyle(document.activeElement).outlineStyle !== 'none'")
            assert visible, f"nobody sees that {text} has the focus"
            return
    raise AssertionError(f"{text} cannot be reached by the keyboard")


def test_the_keyboard_is_enough(visit: Visit) -> None:
    visitor = visit()
    visitor.go("/")
    page = visitor.page
    expect(page.get_by_label("Password")).to_be_focused()  # by itself, when the browser comes to it
    page.keyboard.type(PASSWORD)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Tables")
    page.keyboard.press("Tab")
    assert focused(page) == "Skip to content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    tab_to(page, "public.orders")
    # A refresh under the focus leaves it where it is.
    page.evaluate("document.getElementById('tables').dataset.old = 'x'")
    expect(page.locator("#tables")).not_to_have_attribute("data-old", "x")
    assert focused(page) == "public.orders"
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("public.orders")
    tab_to(page, "All 9 partitions")
    page.keyboard.press("Enter")
    expect(page.get_by_role("rowheader", name="orders_2026_01")).to_be_visible()
    tab_to(page, "Verify")
    tab_to(page, "policy-lag")
    visitor.go("/sql")
    tab_to(page, "sql")
    page.keyboard.type("select 1 as one")
    page.keyboard.press("Tab")
    assert focused(page) == "Run"
    page.keyboard.press("Enter")
    expect(page.get_by_role("columnheader", name="one")).to_be_visible()


# Every text that stands on the page itself, against the nearest ground that is not transparent.
CONTRAST = """
() => {
  const channel = (c) => { c /= 255; return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; };
  const light = (c) => 0.2126 * channel(c[0]) + 0.7152 * channel(c[1]) + 0.0722 * channel(c[2]);
  const parse = (text) => text.match(/[0-9.]+/g).map(Number);
  const poor = [];
  for (const one of document.querySelectorAll("body *")) {
    const own = Array.from(one.childNodes).some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || one.closest("svg, .unseen, .skip, [hidden], option") || !one.getClientRects().length) continue;
    let ground = one;
    while (ground && (parse(getComputedStyle(ground).backgroundColor)[3] ?? 1) === 0) ground = ground.parentElement;
    if (!ground) continue;
    const pair = [getComputedStyle(one).color, getComputedStyle(ground).backgroundColor];
    const [a, b] = pair.map((text) => light(parse(text))).sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) poor.push(`${one.tagName}.${one.className} ${ratio.toFixed(2)} ${one.textContent.trim().slice(0, 30)}`);
  }
  return poor;
}
"""
STRUCTURE = """
() => {
  const wrong = [];
  if (document.querySelectorAll("h1").length !== 1) wrong.push("not one h1");
  for (const landmark of ["header", "nav", "main"]) if (!document.querySelector(landmark)) wrong.push("no " + landmark);
  for (const one of document.querySelectorAll("input:not([type=hidden]), select, textarea"))
    if (!one.labels || !one.labels.length) wrong.push("no label: " + one.name);
  for (const one of document.querySelectorAll("button, a"))
    if (!(one.innerText.trim() || one.getAttribute("aria-label"))) wrong.push("no name: " + one.outerHTML);
  for (const one of document.querySelectorAll("svg[class]")) if (!one.getAttribute("aria-label")) wrong.push("a picture says nothing");
  for (const one of document.querySelectorAll("table"))
    if (!one.caption || !one.querySelector("th[scope=col]")) wrong.push("a table without headers");
  for (const one of document.querySelectorAll("section"))
    if (!one.getAttribute("aria-label") && !document.getElementById(one.getAttribute("aria-labelledby"))) wrong.push("no name: " + one.id);
  const ids = Array.from(document.querySelectorAll("[id]"), (one) => one.id);
  if (new Set(ids).size !== ids.length) wrong.push("an id twice");
  if (document.documentElement.scrollWidth > innerWidth) wrong.push("wider than the window");
  return wrong;
}
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_in_light_and_dark(visit: Visit, scheme: str) -> None:
    visitor = visit(color_scheme=scheme)
    visitor.log_in()
    page = visitor.page
    for name, path in PAGES.items():
        visitor.go(path)
        path_of_shot = visitor.shot(f"{name}-{scheme}")
        assert path_of_shot.stat().st_size > 10_000
        assert page.evaluate(STRUCTURE) == [], name
        assert page.evaluate(CONTRAST) == [], name
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(16, 20, 26)"
    assert dark == (scheme == "dark")


def test_the_theme_can_be_switched_and_stays(visit: Visit) -> None:
    visitor = visit(color_scheme="light")
    visitor.log_in()
    page = visitor.page
    ground: Callable[[], Any] = lambda: page.evaluate("getComputedStyle(document.body).backgroundColor")  # noqa: E731
    before = ground()
    button = page.locator("#theme")
    expect(button).to_have_attribute("aria-pressed", "false")
    button.press("Enter")
    expect(button).to_have_attribute("aria-pressed", "true")
    assert ground() != before
    visitor.go("/operations")
    assert ground() != before


def test_a_phone_is_wide_enough(visit: Visit) -> None:
    visitor = visit(viewport={"width": 390, "height": 844}, is_mobile=True, has_touch=True)
    visitor.log_in()
    for name, path in PAGES.items():
        visitor.go(path)
        visitor.shot(f"{name}-phone")
        assert visitor.page.evaluate(STRUCTURE) == [], name
    assert (SCREENSHOTS / "overview-phone.png").exists()
