"""Reports in a real browser: `python -m experiments.reports.run`; draws the screenshots of the documentation."""

import argparse
import hashlib
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from experiments.records import ROOT, Row, write_record

HERE = Path(__file__).parent
PICTURES = ROOT / "docs" / "images"

#: What is asked for, by the name of its screenshot; the last is refused.
REPORTS = {
    "report-resnet34": ("resnet34", "--device", "a03s"),
    "report-refused": ("mnasnet0_5", "--device", "mi9", "--kinds", "stretch", "--set", "min_depth=0.9", "--set", "min_width=0.9"),
}

#: Widths of a phone and of a desk, pixels.
WIDTHS = (360, 1440)

#: Height of a screenshot for the documentation, pixels, at a width in between.
TALL, WIDE = 1500, 1000


def report(words: tuple[str, ...], path: Path) -> int:
    """Have the command line write a report, and return its exit code."""
    command = [sys.executable, "-c", "from stretch.cli import app; app()", "branch", *words, "--weights", "none", "--dry-run", "--html"]
    # the page states the command, which should hold no path of this machine
    done = subprocess.run(
        [*command, path.name], cwd=path.parent, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, check=False
    )
    if not path.is_file():
        raise SystemExit(f"no report of {words[0]}: {done.stderr.decode()}")
    return done.returncode


def shown(path: Path) -> str:
    """Return a hash of the words of a report, without those of drawings, date and versions."""
    words = re.sub(r"<(svg|style)\b.*?</\1>|<[^>]+>", " ", path.read_text().partition("<footer>")[0], flags=re.DOTALL)
    return hashlib.sha256(" ".join(words.split()).encode()).hexdigest()


def stamp(picture: Path, words: str) -> None:
    """Write into a screenshot which words it shows, so that a test finds it out of date."""
    from PIL import Image, PngImagePlugin

    info = PngImagePlugin.PngInfo()
    info.add_text("report", words)
    with Image.open(picture) as image:
        image.save(picture, pnginfo=info, optimize=True)


def main(words: list[str] | None = None) -> int:
    """Write the reports, load them in turns, check them, and write ``results/pages.json``."""
    parser = argparse.ArgumentParser(prog="python -m experiments.reports.run", description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--draw", action="store_true", help="only draw the screenshots: time nothing, and write no record")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "pages.json")
    options = parser.parse_args(words)
    from axe_playwright_python.sync_playwright import Axe
    from playwright.sync_api import sync_playwright

    first = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if first is None:
        raise SystemExit("there is no Chromium here")
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as engine:
        pages = {name: Path(folder) / f"{name}.html" for name in REPORTS}
        codes = {name: report(REPORTS[name], path) for name, path in pages.items()}
        browser = engine.chromium.launch(executable_path=first, args=["--no-sandbox"])
        times: dict[tuple[str, int], list[float]] = {}
        for _ in range(0 if options.draw else options.rounds):
            for name, path in pages.items():
                for width in WIDTHS:
                    page = browser.new_page(viewport={"width": width, "height": 900})
                    page.goto(path.as_uri())
                    ended = page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")
                    times.setdefault((name, width), []).append(float(ended))
                    page.close()
        rows: list[Row] = []
        for name, path in pages.items():
            page = browser.new_page(viewport={"width": WIDE, "height": TALL})
            page.goto(path.as_uri())
            page.screenshot(path=PICTURES / f"{name}.png")
            stamp(PICTURES / f"{name}.png", shown(path))
            if options.draw:
                continue
            axe = Axe().run(page).response
            rows.append(
                {
                    "report": " ".join(REPORTS[name]),
                    "exit code": codes[name],
                    "kB": round(path.stat().st_size / 1000),
                    **{f"load at {width} px, ms": round(statistics.median(times[name, width])) for width in WIDTHS},
                    "slowest load, ms": round(max(max(times[name, width]) for width in WIDTHS)),
                    "rules of axe kept": len(axe["passes"]),
                    "rules of axe broken": len(axe["violations"]),
                }
            )
            page.close()
        version = browser.version
        browser.close()
    if options.draw:
        return 0
    write_record(
        options.out,
        {"pages": rows},
        source="measured",
        command="python -m experiments.reports.run",
        runs=options.rounds,
        interleaved=True,
        load=load,
        notes=[f"Chromium {version}, headless, from a local file; a load is over with the load event"],
    )
    sys.stderr.write(f"{options.out} written; fill the pages with python -m experiments.render\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
