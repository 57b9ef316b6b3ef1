"""What a browser costs beside the Python session on the same cores: `python -m experiments.web.run`."""

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

import stretch
import stretch.profile.run as networks
import stretch.tools.web.browser as measuring
from experiments.records import ROOT, Row, write_record
from predictors.devices import load_device
from scheduler.bundle.load import Bundle, load_bundle
from scheduler.checks.verify import random_input
from scheduler.runtime.sequential import Sequential
from scheduler.runtime.session import Session
from scheduler.tools.web.server import BrowserAnswer, PageBundle, PageServer, runtime_folder

HERE = Path(__file__).parent
#: Networks whose exact and stretched branches run, by how they are planned.
BUNDLES = {
    "SqueezeNet 1.1, exact": ("squeezenet1_1", ("rows",)),
    "SqueezeNet 1.1, stretched": ("squeezenet1_1", ("stretch",)),
    "ResNet-18, stretched": ("resnet18", ("stretch",)),
}
#: A phone whose CPU and GPU are alike for these networks, so that designs have branches.
DEVICE = "a03s"
#: Visits of the page, between which Python runs, and rounds of each.
VISITS, ROUNDS = 3, 15
ARGS = ("--no-sandbox",)
#: WebGPU in software, and sizes of networks that it computes within seconds.
WEBGPU = ("--enable-unsafe-webgpu", "--enable-features=Vulkan", "--use-webgpu-adapter=swiftshader")
ANY = 9.0  # A spread of times beyond which none is left out.
SIZES = {"LEAST_NETWORKS": 8, "BATCH": 4, "ROUNDS": 5, "MOST_MACS": 2_000_000, "MOST_WEIGHTS": 300_000, "UNSTEADY": ANY}
SIZES |= {"HANDOVERS": ((8, 16, 16), (8, 32, 32), (16, 32, 1), (64, 32, 32)), "READ_SHAPE": (8, 32, 32)}
BUSY = {"_COMPUTING": (32, 14), "_MOVING": (16, 40)}
PICTURE = ROOT / "docs" / "images" / "web.png"


def run_page(page: Page, server: PageServer) -> None:
    """Open the page, press its button, and wait until it is done."""
    page.goto(server.address)
    page.wait_for_selector("#start:enabled")
    page.fill("#threads", "1")
    page.fill("#rounds", str(ROUNDS))
    page.click("#start")
    page.wait_for_selector("body[data-ended]", timeout=600_000)
    if problem := page.inner_text("#failure"):
        raise SystemExit(problem)


def visit(browser: Browser, shown: Sequence[PageBundle], picture: Path | None = None) -> list[BrowserAnswer]:
    """What the page reports of some bundles."""
    with PageServer(shown, runtime_folder()) as server:
        page = browser.new_page(viewport={"width": 720, "height": 900})
        run_page(page, server)
        if picture is not None:
            page.screenshot(path=picture, full_page=True)
        page.close()
        return server.answers


def in_python(bundle: Bundle) -> dict[str, float]:
    """Medians in this process: the branches on two cores, and the original on one."""
    x = random_input(bundle)
    alone = Sequential(bundle.path / bundle.manifest.controls["original"], (0,))
    alone.run(x)
    times: dict[str, list[float]] = {"branches": [], "original": []}
    with Session(bundle, {"cpu": "cpu0", "gpu": "cpu1"}) as session:
        session(x)
        for _ in range(ROUNDS):
            start = perf_counter()
            session(x)
            times["branches"].append(1e3 * (perf_counter() - start))
            times["original"].append(alone.time())
    return {name: median(values) for name, values in times.items()}


def row_of(name: str, browser: Browser, bundle: Bundle, picture: Path | None) -> Row:
    """A bundle in the page and in Python, in turns."""
    shown = [PageBundle("b0", name, bundle)]
    there: list[BrowserAnswer] = []
    here: list[dict[str, float]] = []
    for _ in range(VISITS):
        there += visit(browser, shown, picture)
        here.append(in_python(bundle))
    row: dict[str, Any] = {"network": name}
    for title, key in (("original on one core", "original"), ("branches on two", "branches")):
        page = [answer.median_ms["branches" if key == "branches" else "original on cpu"] for answer in there]
        python = [times[key] for times in here]
        ratios = sorted(a / b for a, b in zip(page, python, strict=True))
        row |= {
            f"{title}: page ms": round(median(page), 2),
            f"{title}: Python ms": round(median(python), 2),
            f"{title}: page over Python": round(median(ratios), 2),
            f"{title}: least": round(ratios[0], 2),
            f"{title}: largest": round(ratios[-1], 2),
        }
    row["message to a worker and back, ms"] = round(median(answer.handover_ms or 0.0 for answer in there), 3)
    row["two workers at once, ms"] = round(median(answer.overlap_ms for answer in there), 2)
    row["largest difference"] = float(f"{max(value or 0.0 for answer in there for value in answer.differences.values()):.1e}")
    row["MACs ratio"] = round(there[0].macs_ratio["branches"], 3)
    sys.stderr.write(f"{row}\n")
    return row


def exchanges(browser: Browser, folder: Path) -> list[Row]:
    """What exchanges with software WebGPU take, as a profile of the browser has them."""
    for module, values in ((measuring, SIZES), (networks, BUSY)):
        for name, value in values.items():
            setattr(module, name, value)
    measurer = measuring.BrowserMeasurer("browser", folder, 1.0)
    with PageServer([], runtime_folder(), measurer=measurer) as server:
        page = browser.new_page()
        run_page(page, server)
        page.close()
    link = load_device(folder / "browser.toml").links["gpu"]
    low, high = link.spread.value if link.spread else (1.0, 1.0)
    row: Row = {"what": "there and back, software WebGPU"}
    row["fixed, ms"] = round(link.map_ms.value + link.unmap_ms.value + link.sync_ms.value, 2)
    row["MB/s there"] = round(1e3 * link.convert_gbs.value, 1)
    row["while both compute, times as long"] = round(high if high > 1 else low, 2)
    return [row]


def main() -> int:
    """Measure, and write ``results/host.json`` and the guide's picture; gives the exit code."""
    load = os.getloadavg()[0]
    rows = []
    with sync_playwright() as engine, tempfile.TemporaryDirectory() as scratch:
        browser = engine.chromium.launch(executable_path="/usr/bin/chromium", args=list(ARGS))
        for number, (name, (model, kinds)) in enumerate(BUNDLES.items()):
            path = Path(scratch) / str(number)
            stretch.branch(model, DEVICE, processors=("cpu", "gpu"), kinds=kinds, weights="none", out=path)
            rows.append(row_of(name, browser, load_bundle(path), PICTURE))
        agent = browser.version
        browser.close()
        browser = engine.chromium.launch(executable_path="/usr/bin/chromium", args=[*ARGS, *WEBGPU])
        links = exchanges(browser, Path(scratch))
        browser.close()
    write_record(
        HERE / "results" / "host.json",
        {"page": rows, "exchanges": links},
        source="measured",
        command="python -m experiments.web.run",
        runs=VISITS * ROUNDS,
        load=load,
        interleaved=True,
        notes=[
            f"Chromium {agent}, headless, without WebGPU: the GPU's branches run on WebAssembly with one thread, too. Visits of the page and runs in Python took turns; in each, contestants took turns by rounds. `page over Python`: the ratio of medians of a visit and the run behind it; median, least and largest of them.",
            "exchanges: with WebGPU in software, a few sizes up to 256 KB, medians of 5 runs; the kernel between is a ReLU, and is part of them.",
        ],
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
