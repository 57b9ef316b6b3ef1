"""Screenshots of the documentation, from a real browser: `python -m experiments.reports.run`."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.records import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PICTURES = ROOT / "docs" / "images"

#: Commands of the reports by the name of the screenshot; the last command is refused.
REPORTS = {
    "report-resnet34": ("resnet34", "--device", "a03s"),
    "report-refused": ("mnasnet0_5", "--device", "mi9", "--kinds", "stretch", "--set", "min_depth=0.9", "--set", "min_width=0.9"),
}

#: Height and width of a report's screenshot in pixels.
TALL, WIDE = 1500, 1000


def report(words: tuple[str, ...], path: Path) -> int:
    """Let the command line write a report, and return its exit code."""
    command = [sys.executable, "-c", "from stretch.cli import app; app()", "branch", *words, "--weights", "none", "--dry-run", "--html"]
    # the page shows the command, which should contain no path of this machine
    done = subprocess.run(
        [*command, path.name], cwd=path.parent, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, check=False
    )
    if not path.is_file():
        raise SystemExit(f"no report of {words[0]}: {done.stderr.decode()}")
    return done.returncode


def shown(path: Path) -> str:
    """Return a hash of a report's text, without drawings, date and versions."""
    words = re.sub(r"<(svg|style)\b.*?</\1>|<[^>]+>", " ", path.read_text().partition("<footer>")[0], flags=re.DOTALL)
    return hashlib.sha256(" ".join(words.split()).encode()).hexdigest()


def stamp(picture: Path, words: str) -> None:
    """Write the hash of a screenshot's text into it, so that a test can detect that it is out of date."""
    from PIL import Image, PngImagePlugin

    info = PngImagePlugin.PngInfo()
    info.add_text("report", words)
    with Image.open(picture) as image:
        image.save(picture, pnginfo=info, optimize=True)


def draw_page(browser: "Browser", folder: Path, picture: Path) -> None:
    """Run a bundle in the page of `stretch web`, and take its screenshot."""
    import stretch
    from scheduler.bundle.load import load_bundle
    from scheduler.tools.web.server import PageBundle, PageServer, runtime_folder

    stretch.branch("resnet18", "a03s", processors=("cpu", "gpu"), kinds=("stretch",), weights="none", out=folder / "web")
    with PageServer([PageBundle("b0", "ResNet-18, stretched", load_bundle(folder / "web"))], runtime_folder()) as server:
        page = browser.new_page(viewport={"width": 720, "height": 900})
        page.goto(server.address)
        page.wait_for_selector("#start:enabled")
        page.fill("#threads", "1")
        page.click("#start")
        page.wait_for_selector("body[data-ended]", timeout=600_000)
        page.screenshot(path=picture, full_page=True)


def main() -> None:
    """Draw the reports and the page of `stretch web`."""
    from playwright.sync_api import sync_playwright

    first = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if first is None:
        raise SystemExit("there is no Chromium here")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as engine:
        browser = engine.chromium.launch(executable_path=first, args=["--no-sandbox"])
        for name, words in REPORTS.items():
            path = Path(folder) / f"{name}.html"
            report(words, path)
            page = browser.new_page(viewport={"width": WIDE, "height": TALL})
            page.goto(path.as_uri())
            page.screenshot(path=PICTURES / f"{name}.png")
            stamp(PICTURES / f"{name}.png", shown(path))
        draw_page(browser, Path(folder), PICTURES / "web.png")


if __name__ == "__main__":
    main()
