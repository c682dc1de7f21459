"""Headless Chromium on a service of its own, without any network but loopback."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, Request, expect, sync_playwright
from playwright.sync_api import TimeoutError as PlaywrightTimeout

from hosting.service_process import ServiceProcess
from tests.conftest import PROFILES
from tests.session_folder import add_session

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # Not by intercepting requests: that turns the browser's cache off, which is under test.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
PATIENCE = 20_000  # ms
UPSTREAM_ERRORS = re.compile(
    "google is not defined"  # the charts' library, which only the internet has
    "|sampledTimelineSnapshots"  # memory_profile of a profile without a timeline
)


@dataclass(frozen=True)
class Tree:
    """The sessions under test; both of the two have a tool with a table that needs no internet."""

    root: Path
    two_hosts: str
    """The session of `host-0` and `host-1`."""
    other: str
    """The session of `34.83.195.179_6003`."""
    demo: str
    """The session of two JAX processes on the CPU."""
    tool: str
    tool_title: str
    marker: str
    """A text in the tool's table for `two_hosts`."""

    def folder(self, session: str) -> Path:
        run, name = session.split("/")
        return self.root / run / "plugins" / "profile" / name


@pytest.fixture(scope="session")
def chromium_path() -> str:
    """Debian's Chromium; skips where it is missing, before anything is captured or served."""
    if not Path(CHROMIUM).exists():
        pytest.skip("chromium is missing: apt-get install chromium")
    return CHROMIUM


@pytest.fixture(scope="session")
def tree(chromium_path: str, tmp_path_factory: pytest.TempPathFactory, cpu_session: Path) -> Tree:
    """Real TPU and GPU profiles, or where they are missing the CPU's in their place."""
    root = tmp_path_factory.mktemp("log_root")
    hosts = {path.name.removesuffix(".xplane.pb"): path for path in sorted(cpu_session.glob("*.xplane.pb"))}
    add_session(root, "demo", "2025_03_01_08_00_00", hosts)
    cpu = next(iter(hosts.values()))
    tpu, gpu = PROFILES["tpu"], PROFILES["gpu"]
    shared = tpu.is_file() and gpu.is_file()
    add_session(root, "train", "2025_02_01_10_00_00", dict.fromkeys(("host-0", "host-1"), tpu if shared else cpu))
    add_session(root, "serve", "2025_01_01_09_00_00", {"34.83.195.179_6003": gpu if shared else cpu})
    return Tree(
        root,
        two_hosts="train/2025_02_01_10_00_00",
        other="serve/2025_01_01_09_00_00",
        demo="demo/2025_03_01_08_00_00",
        # A profile of CPUs alone has no op_profile.
        tool="op_profile" if shared else "framework_op_stats",
        tool_title="HLO Op Profile" if shared else "Framework Op Stats",
        marker="jit_f" if shared else "",
    )


@pytest.fixture(scope="session")
def service(tree: Tree, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """The service on that tree."""
    state = tmp_path_factory.mktemp("state")
    arguments = ["--logdir", str(tree.root), "--port", "0", "--state-dir", str(state)]
    with ServiceProcess(arguments, log=state / "service.log") as running:
        yield running


# One module long: while Playwright runs, asyncio takes its loop for the running one, and async tests cannot start.
@pytest.fixture(scope="module")
def browser(chromium_path: str) -> Iterator[Browser]:
    """Chromium, running."""
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=chromium_path, args=FLAGS)
        yield chromium
        chromium.close()


@dataclass
class Ui:
    """One tab with the XProf UI, and what it did."""

    page: Page
    address: str
    folder: Path
    """Where screenshots go."""
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)

    def open(self, path: str = "", **parameters: str) -> None:
        """Opens an address of the service; the path has no slash at the start."""
        query = f"?{urlencode(parameters)}" if parameters else ""
        self.page.goto(f"{self.address}{path}{query}")

    def box(self, name: str) -> Locator:
        """The sidenav's box of `Sessions`, `Tools` or `Hosts`."""
        return self.page.locator("sidenav .item-container", has_text=re.compile(rf"{name} \(\d")).locator("mat-select")

    def choose(self, name: str, option: str) -> None:
        """Chooses in one of the sidenav's boxes."""
        for _ in range(4):
            try:
                self.box(name).click(timeout=3_000)
                break
            except PlaywrightTimeout:  # the sidenav hides itself when some tools have opened
                self.page.get_by_role("button", name="Menu icon").click()
        self.page.get_by_role("option", name=option, exact=True).click()

    def expect_shown(self, session: str, tool_title: str, host: str) -> None:
        """Waits until the sidenav shows these."""
        for name, text in (("Sessions", session), ("Tools", tool_title), ("Hosts", host)):
            expect(self.box(name).locator(".mat-mdc-select-min-line")).to_have_text(text)

    def expect_tracks(self, *hosts: str) -> None:
        """Waits until the trace viewer has drawn the tracks of these hosts."""
        frame = self.page.frame_locator("iframe")
        for host in hosts:
            # Each name is also a label of a closed menu.
            name = frame.get_by_text(re.compile(rf"^{re.escape(host)} /\S+ \(pid \d+\)$")).locator("visible=true")
            expect(name.first).to_be_visible()

    def expect_drawn(self, colours: int) -> None:
        """Waits until the trace viewer's tracks, not its ruler alone, show at least so many colours."""
        frame = next(frame for frame in self.page.frames if "trace_viewer_index.html" in frame.url)
        frame.wait_for_function(
            """colours => {
              const canvases = document.getElementsByTagName('canvas');
              for (let i = 0; i < canvases.length; i++) {
                const {width, height} = canvases[i];
                if (!width || height < 100) continue;
                const {data} = canvases[i].getContext('2d').getImageData(0, 0, width, height);
                if (new Set(new Uint32Array(data.buffer)).size >= colours) return true;
              }
              return false;
            }""",
            arg=colours,
        )

    def parameters(self) -> dict[str, str]:
        """The query of the address bar."""
        return dict(self.page.evaluate("() => Object.fromEntries(new URLSearchParams(location.search))"))

    def screenshot(self, name: str) -> None:
        """Keeps a picture for people."""
        self.page.screenshot(path=self.folder / f"{name}.png")


@pytest.fixture
def ui(browser: Browser, service: ServiceProcess, tmp_path: Path) -> Iterator[Ui]:
    """A fresh tab with an empty cache. Errors in the page, but for those known upstream, fail the test at its end."""
    expect.set_options(timeout=PATIENCE)
    context = browser.new_context(viewport={"width": 1500, "height": 900})
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    tab = Ui(page, service.address, tmp_path)

    def on_console(message: ConsoleMessage) -> None:
        # Angular catches exceptions and reports them so.
        if message.type == "error" and "XProf Error" in message.text:
            tab.errors.append(message.text)

    def on_finished(request: Request) -> None:
        if not request.url.startswith((service.address, "data:", "blob:")):
            tab.outside.append(request.url)

    page.on("console", on_console)
    page.on("pageerror", lambda error: tab.errors.append(str(error)))
    page.on("request", lambda request: tab.requests.append(request.url))
    page.on("requestfinished", on_finished)
    yield tab
    page.screenshot(path=tmp_path / "end.png")
    context.close()
    assert [error for error in tab.errors if not UPSTREAM_ERRORS.search(error)] == []
    assert tab.outside == []
