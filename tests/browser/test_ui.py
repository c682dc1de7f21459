"""The XProf UI in a real browser, offline: sessions open, tools draw, links lead where they say."""

from __future__ import annotations

import re
import subprocess
import sys

from playwright.sync_api import expect

from tests.browser.conftest import Tree, Ui

TRACE = "Trace Viewer"


def table(ui: Ui, tree: Tree) -> str:
    """The text of the tool's table, once it is there."""
    tool = ui.page.locator(tree.tool.replace("_", "-"))
    if tree.marker:
        expect(tool).to_contain_text(tree.marker)
    else:
        expect(tool).to_contain_text("Operations")
    return tool.inner_text()


def test_the_demo_session_opens_with_its_overview_and_its_two_hosts_tracks(ui: Ui, tree: Tree) -> None:
    ui.open(run=tree.demo, tag="overview_page")
    ui.expect_shown(tree.demo, "Overview Page", "ALL_HOSTS")
    expect(ui.page.get_by_text("Loading overview data")).to_be_hidden()
    expect(ui.page.locator("overview-page")).to_contain_text("Device type: CPU")
    ui.screenshot("overview")
    ui.choose("Tools", TRACE)
    ui.expect_shown(tree.demo, TRACE, "demo-host-0")
    ui.expect_tracks("demo-host-0")
    ui.screenshot("trace")


def test_without_parameters_the_newest_session_opens(ui: Ui, tree: Tree) -> None:
    ui.open("data/plugin/profile/")
    ui.expect_shown(tree.two_hosts, "Overview Page", "ALL_HOSTS")


def test_trace_viewer_draws_the_timeline(ui: Ui, tree: Tree) -> None:
    ui.open(run=tree.two_hosts, tag="trace_viewer@", host="host-0")
    ui.expect_tracks("host-0")
    ui.expect_drawn(colours=100)
    ui.screenshot("timeline")


def test_trace_viewer_shows_two_hosts_in_one_timeline(ui: Ui, tree: Tree) -> None:
    ui.open(run=tree.two_hosts, tag="trace_viewer@", hosts="host-0,host-1")
    ui.expect_shown(tree.two_hosts, TRACE, "host-0, host-1")
    ui.expect_tracks("host-0", "host-1")
    ui.screenshot("two_hosts")


def test_trace_viewer_says_above_all_else_that_events_are_hidden(ui: Ui, tree: Tree) -> None:
    # A trace over the bound is 64 MB; this is what the engine makes of a small one with a smaller bound.
    profile = tree.folder(tree.two_hosts) / "host-0.xplane.pb"
    command = [sys.executable, "-m", "tests.thinned_trace", str(profile), "150000"]
    thinned = subprocess.run(command, capture_output=True, check=True, timeout=60).stdout
    assert len(thinned) <= 150_000
    ui.page.route(
        re.compile(r"/data\?.*trace_viewer"), lambda route: route.fulfill(body=thinned, content_type="application/json")
    )
    ui.open(run=tree.two_hosts, tag="trace_viewer@", host="host-0")
    ui.expect_tracks("host-0")
    names = ui.page.frame_locator("iframe").get_by_text(re.compile(r"\(pid \d+\)$")).locator("visible=true")
    expect(names.first).to_have_text(
        re.compile(r"^⚠ [\d,]+ of [\d,]+ events are hidden: zoom in to see them \(pid 0\)$")
    )
    ui.expect_drawn(colours=20)
    ui.screenshot("hidden_events")


def test_the_tools_table_is_shown(ui: Ui, tree: Tree) -> None:
    ui.open(run=tree.two_hosts, tag=tree.tool)
    assert len(table(ui, tree).split()) > 30
    ui.screenshot("table")


def test_session_and_host_are_switched_in_the_sidenav_and_back_leads_back(ui: Ui, tree: Tree) -> None:
    ui.open(run=tree.two_hosts, tag=tree.tool, host="host-0")
    first = table(ui, tree)
    ui.choose("Hosts", "host-1")
    ui.expect_shown(tree.two_hosts, tree.tool_title, "host-1")
    table(ui, tree)
    assert ui.parameters()["host"] == "host-1"
    assert any(f"tag={tree.tool}&host=host-1" in url for url in ui.requests if "/data?" in url)

    ui.choose("Sessions", tree.other)
    ui.expect_shown(tree.other, tree.tool_title, "34.83.195.179_6003")
    assert ui.parameters()["run"] == tree.other
    if tree.marker:
        expect(ui.page.locator(tree.tool.replace("_", "-"))).not_to_contain_text(tree.marker)

    ui.page.go_back()
    ui.expect_shown(tree.two_hosts, tree.tool_title, "host-1")
    # The UI loses the second of two steps back when the first one's table is not there yet.
    assert table(ui, tree) == first
    ui.page.go_back()
    ui.expect_shown(tree.two_hosts, tree.tool_title, "host-0")
    assert table(ui, tree) == first


def test_a_deep_link_survives_a_reload(ui: Ui, tree: Tree) -> None:
    ui.open(f"data/plugin/profile/{tree.tool}", run=tree.two_hosts, tag=tree.tool, host="host-1")
    for _ in range(2):
        ui.expect_shown(tree.two_hosts, tree.tool_title, "host-1")
        table(ui, tree)
        shown = ui.parameters()
        assert (shown["run"], shown["tag"], shown["host"]) == (tree.two_hosts, tree.tool, "host-1")
        ui.page.reload()


def test_a_link_to_one_hosts_trace_shows_that_host_also_after_a_reload(ui: Ui, tree: Tree) -> None:
    ui.open(run=tree.two_hosts, tag="trace_viewer@", host="host-1")
    for _ in range(2):
        ui.expect_shown(tree.two_hosts, TRACE, "host-1")
        ui.expect_tracks("host-1")
        ui.page.reload()
    traces = [url for url in ui.requests if "/data?" in url]
    assert traces
    assert all("host=host-1" in url and "host-0" not in url for url in traces)


def test_a_session_folder_opens_by_its_path(ui: Ui, tree: Tree) -> None:
    folder = tree.folder(tree.two_hosts)
    ui.open(session_path=str(folder), tag=tree.tool, host="host-0")
    ui.expect_shown(folder.name, tree.tool_title, "host-0")
    table(ui, tree)


def test_a_link_to_a_session_that_does_not_exist_says_so_and_offers_near_ones(ui: Ui, tree: Tree) -> None:
    dead = tree.two_hosts.replace("10_00_00", "10_00_09")
    ui.open(run=dead, tag=tree.tool)
    expect(ui.page.get_by_role("heading", level=1)).to_have_text(f"Session {dead} does not exist")
    assert ui.page.locator("sidenav").count() == 0
    assert ui.page.evaluate("() => performance.getEntriesByType('navigation')[0].responseStatus") == 404
    ui.screenshot("dead_session")
    ui.page.get_by_role("link", name=tree.two_hosts).click()
    expect(ui.page.locator("sidenav")).to_contain_text(tree.two_hosts)


def test_a_link_to_a_host_that_does_not_exist_says_so(ui: Ui, tree: Tree) -> None:
    ui.open(f"data/plugin/profile/{tree.tool}", run=tree.two_hosts, tag=tree.tool, host="host-7")
    expect(ui.page.get_by_role("heading", level=1)).to_have_text("Host host-7 does not exist")
    assert ui.page.evaluate("() => performance.getEntriesByType('navigation')[0].responseStatus") == 404
    ui.screenshot("dead_host")


def test_a_second_page_load_takes_the_uis_files_from_the_browsers_cache(ui: Ui, tree: Tree) -> None:
    def transferred() -> dict[str, int]:
        """Bytes that each of the UI's files cost."""
        entries = ui.page.evaluate(
            "() => performance.getEntriesByType('resource').map(entry => [entry.name, entry.transferSize])"
        )
        return {name.rsplit("/", 1)[-1]: size for name, size in entries if "?v=" in name}

    ui.open(f"data/plugin/profile/{tree.tool}", run=tree.two_hosts, tag=tree.tool, host="host-0")
    table(ui, tree)
    first = transferred()
    bundle = next(name for name in first if name.startswith("bundle.js?v="))
    assert 0 < first[bundle] < 700_000
    ui.open(f"data/plugin/profile/{tree.tool}", run=tree.two_hosts, tag=tree.tool, host="host-1")
    table(ui, tree)
    second = transferred()
    assert second.keys() == first.keys()
    assert set(second.values()) == {0}
