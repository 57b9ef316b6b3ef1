"""`stretch web` in a real browser: parallel branches with correct results, a usable profile, and an accessible page."""

import contextlib
import functools
import json
import shutil
import subprocess
import sys
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from predictors.devices import load_device
from predictors.errors import MissingBackendError, UsageError
from scheduler.bundle.load import load_bundle
from scheduler.runtime.machine import Submit
from scheduler.runtime.record import Line, replay
from scheduler.tools.web.server import PageBundle, PageServer, runtime_folder
from tests.contracts.test_cli_json import check_keys
from tests.stretch.cli.commands import succeed

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

browser_test = [pytest.mark.slow, pytest.mark.torch, pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")]

#: Software WebGPU, which needs a second for work that a phone does in milliseconds.
WEBGPU = ("--enable-unsafe-webgpu", "--enable-features=Vulkan", "--use-webgpu-adapter=swiftshader")


@functools.cache
def runtime():
    try:
        return runtime_folder()
    except MissingBackendError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module", params=[(), WEBGPU], ids=["wasm", "webgpu"])
def browser(request):
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as engine:
        # without its sandbox Chromium also starts as root, as in a container; it only loads our pages
        launched = engine.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", *request.param])
        launched.webgpu = bool(request.param)
        yield launched
        launched.close()


class Visit:
    """An open page that runs to its end."""

    def __init__(self, browser, address, rounds=5, threads=1, width=360):
        self.page = browser.new_page(viewport={"width": width, "height": 800})
        self.console, self.addresses = [], []
        self.page.on("console", lambda message: self.console.append(message.text))
        self.page.on("pageerror", lambda error: self.console.append(str(error)))
        self.page.on("request", lambda request: self.addresses.append(request.url))
        self.page.goto(address)
        self.page.wait_for_selector("#start:enabled", timeout=60_000)
        self.page.fill("#rounds", str(rounds))
        self.page.fill("#threads", str(threads))
        self.page.click("#start")

    def finish(self):
        self.page.wait_for_selector("body[data-ended]", timeout=300_000)
        return self.page.inner_text("#failure")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A folder with an exact bundle with bands and paths, and a stretched bundle."""
    import stretch
    from tests.stretch import exact_bundles

    folder = tmp_path_factory.mktemp("bundles")
    exact_bundles.made(folder / "exact")
    options = {"processors": ("cpu", "gpu"), "kinds": ("stretch",), "alpha": 100.0, "beta": 5.0}
    stretch.branch("tiny_resnet", "pixel6", weights="none", out=folder / "stretched", **options)
    return folder


class TestBundles:
    pytestmark = browser_test

    def test_branches_overlap_with_correct_results_in_the_order_of_the_state_machine(self, browser, folders, tmp_path):
        axe = pytest.importorskip("axe_playwright_python.sync_playwright")
        shown = [PageBundle(name, name, load_bundle(folders / name)) for name in ("exact", "stretched")]
        with PageServer(shown, runtime()) as server:
            visit = Visit(browser, server.address)
            assert visit.finish() == ""
            assert server.ended.wait(10)
            assert [answer.bundle for answer in server.answers] == [str(folders / name) for name in ("exact", "stretched")]
            for answer in server.answers:
                assert answer.right, answer.differences
                assert answer.providers == {"cpu": "wasm", "gpu": "webgpu" if browser.webgpu else "wasm"}
                assert answer.rounds == 5
            # both branches of a segment are submitted before either is done, on a busy machine, too
            assert any(
                {item.queue for item in line.instructions if isinstance(item, Submit)} == {"cpu", "gpu"}
                for line in server.lines
                if isinstance(line, Line)
            )
            record = tmp_path / "page.jsonl"
            record.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in server.lines))
            origin = server.address.rsplit("/", 2)[0]
            assert all(url.startswith((origin, "data:")) for url in visit.addresses)
            assert [text for text in visit.console if "adapter" not in text] == []
            assert visit.page.evaluate("document.documentElement.scrollWidth") <= 360
            violations = axe.Axe().run(visit.page).response["violations"]
            assert [(item["id"], [node["target"] for node in item["nodes"]]) for item in violations] == []
            visit.page.close()
        lines = record.read_text().splitlines()
        assert (sum('"type":"Opening"' in line for line in lines), replay(record).finished) == (2, 2)

    def test_outputs_of_the_page_are_those_of_torch(self, browser, folders):
        from tests.stretch.exact_bundles import original

        shown = PageBundle("exact", "exact", load_bundle(folders / "exact"))
        (name,), (output,) = shown.manifest.inputs, shown.manifest.outputs
        with PageServer([shown], runtime()) as server:
            want = original(shown.tensors["tensors", name])
            reference_error = np.abs(shown.tensors["outputs", output] - want).max() / np.abs(want).max()
            visit = Visit(browser, server.address, rounds=3)
            assert visit.finish() == ""
            # the page's difference from its reference and the reference's from torch are small together
            assert reference_error + max(server.answers[0].differences.values()) < 1e-4
            visit.page.close()

    def test_closed_page_makes_room_for_the_next_one(self, browser, folders):
        with PageServer([PageBundle("exact", "exact", load_bundle(folders / "exact"))], runtime()) as server:
            first = Visit(browser, server.address, rounds=1000)
            first.page.wait_for_selector("#state:has-text('round')", timeout=120_000)
            second = Visit(browser, server.address, rounds=3)
            assert "another page" in second.finish()
            second.page.close()
            first.page.close(run_before_unload=False)
            third = Visit(browser, server.address, rounds=3)
            assert third.finish() == ""
            third.page.close()


@pytest.mark.parametrize("browser", [WEBGPU], indirect=True, ids=["webgpu"])
class TestProfile:
    pytestmark = browser_test

    def test_profile_of_the_browser_is_used_for_a_plan_that_runs_there(self, browser, capsys, monkeypatch, tmp_path):
        from stretch.profile import run as networks
        from stretch.tools.web import browser as measuring

        sizes = {"LEAST_NETWORKS": 8, "BATCH": 4, "ROUNDS": 2, "MOST_MACS": 2_000_000, "MOST_WEIGHTS": 300_000, "UNSTEADY": 9.0}
        sizes |= {"HANDOVERS": ((8, 16, 16), (8, 32, 32), (16, 32, 1)), "READ_SHAPE": (8, 32, 32)}
        for name, value in sizes.items():
            monkeypatch.setattr(measuring, name, value)
        monkeypatch.setattr(networks, "_COMPUTING", (32, 14))
        monkeypatch.setattr(networks, "_MOVING", (16, 40))
        measurer = measuring.BrowserMeasurer("mine", tmp_path, 1.0)
        with PageServer([], runtime(), measurer=measurer) as server:
            visit = Visit(browser, server.address, threads=2)
            assert visit.finish() == ""
            visit.page.close()
        fits = {(item.processor, item.core_set) for item in measurer.fits}
        assert fits == {("cpu", "2threads"), ("cpu", "1thread"), ("gpu", "all")}
        profile, bundle = tmp_path / "mine.toml", tmp_path / "bundle"
        device = load_device(profile)
        assert "HeadlessChrome" in device.name
        assert device.links["gpu"].map_ms.value > 0
        arguments = ["--device", profile, "--processors", "cpu,gpu", "--kinds", "rows", "--weights", "none", "--out", bundle]
        succeed(capsys, "branch", "tiny_resnet", *arguments)
        with running("web", bundle, "--json") as (process, address):
            visit = Visit(browser, address, rounds=3, threads=2)
            assert visit.finish() == ""
            visit.page.close()
            out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        check_keys(json.loads(out), "web")
        (answer,) = json.loads(out)["bundles"]
        assert answer["right"]
        assert answer["predicted_ms"] > 0
        assert answer["median_ms"]["branches"] > 0


@contextlib.contextmanager
def running(*arguments):
    """Run `stretch` in another process; yield the process and the address that it prints."""
    command = [sys.executable, "-c", "from stretch.cli import app; app()", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            line = next(line for line in process.stderr if "http" in line)
            yield process, line.split("open ")[1].strip()
        finally:
            process.kill()


def test_bundle_with_tensors_other_than_fp32_is_refused(bundle_dir):
    bundle = load_bundle(bundle_dir)
    tensors = tuple(msgspec.structs.replace(tensor, dtype="float16") for tensor in bundle.manifest.tensors)
    manifest = msgspec.structs.replace(bundle.manifest, tensors=tensors)
    with pytest.raises(UsageError, match="float16"):
        PageBundle("b0", "tiny", replace(bundle, manifest=manifest))
