"""Pages in a real browser load no other resource, fit a phone, and keep the rules of accessibility."""

import shutil

import pytest

from tests.stretch.cli.commands import LOOSE, call

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

pytestmark = [pytest.mark.slow, pytest.mark.torch, pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")]

#: Visible elements that can be opened, followed or scrolled.
STOPS = "[...document.querySelectorAll('a[href], summary, [tabindex=\"0\"]')].filter(each => each.checkVisibility())"

TINY = ("tiny_resnet", "--device", "pixel6", "--weights", "none")


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as engine:
        # without its sandbox Chromium also starts as root, for example in a container; it reads only our files
        chromium = engine.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.mark.parametrize(
    ("verb", "args", "code"),
    [
        ("branch", (*TINY, "--lossless", "--input", "3x64x64", "--dry-run"), 0),
        ("branch", (*TINY, "--alpha", "0.000001", "--kinds", "stretch", "--dry-run"), 4),
        ("search", (*TINY, "--processors", "cpu,gpu", *LOOSE, "--top", 4), 0),
        ("simulate", ("BUNDLE", "--inferences", 50, "--busy", "gpu=0.9@5:60", "--or", "cpu", "--beside", "BUNDLE"), 0),
    ],
    ids=["exact", "refused", "search", "simulate"],
)
def test_report_loads_offline_fits_and_is_accessible(browser, bundle_dir, tmp_path, capsys, verb, args, code):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    page_file = tmp_path / "report.html"
    done = call(capsys, verb, *(bundle_dir if arg == "BUNDLE" else arg for arg in args), "--html", page_file)
    assert done.code == code, done.err
    for width in (360, 1440):
        page = browser.new_page(viewport={"width": width, "height": 900})
        logged, urls = [], []
        page.on("console", lambda message, logged=logged: logged.append(message.text))
        page.on("pageerror", lambda error, logged=logged: logged.append(str(error)))
        page.on("request", lambda request, urls=urls: urls.append(request.url))
        page.goto(page_file.as_uri())
        assert (logged, [url for url in urls if not url.startswith("data:")]) == ([], [page_file.as_uri()])
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        result = axe.Axe().run(page).response["violations"]
        assert [(item["id"], [node["target"] for node in item["nodes"]]) for item in result] == []
        # the keyboard reaches everything that can be opened or scrolled
        stops = page.evaluate(f"{STOPS}.length")
        reached = set()
        for _ in range(stops):
            page.keyboard.press("Tab")
            reached.add(page.evaluate(f"{STOPS}.indexOf(document.activeElement)"))
        assert reached == set(range(stops))
        page.close()
