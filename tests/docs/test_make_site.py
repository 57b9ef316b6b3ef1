"""The website made from the pages of the repository."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest

from tests.contracts.repository import ROOT
from tests.docs.pages import program

pytest.importorskip("mkdocs")


@pytest.fixture(scope="module")
def hooks():
    return program("make_site")


class _Read(HTMLParser):
    """Links, loaded files and anchors of a page."""

    def __init__(self, text):
        super().__init__()
        self.links, self.loaded, self.places = [], [], set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        result = dict(attrs)
        self.places.update(result[key] for key in ("id", "name") if result.get(key))
        if tag == "a" and result.get("href"):
            self.links.append(result["href"])
        if tag in ("script", "img", "iframe") and result.get("src"):
            self.loaded.append(result["src"])
        if tag == "link" and result.get("rel") in ("stylesheet", "icon", "preload"):
            self.loaded.append(result["href"])


@pytest.mark.parametrize(
    ("link", "wanted"),
    [
        ("[code](../../scheduler)", "code"),
        ("[all](../../experiments)", "[all](../../experiments/README.md)"),
        ("[all](../../experiments#numbers)", "[all](../../experiments/README.md#numbers)"),
        ("[page](run-a-bundle.md)", "[page](run-a-bundle.md)"),
        ("[there](https://example.org/x)", "[there](https://example.org/x)"),
        ("[out](../../../elsewhere)", "[out](../../../elsewhere)"),
    ],
)
def test_link_to_a_folder_leads_to_its_page_or_becomes_text(hooks, link, wanted):
    assert hooks.with_folders("docs/guides/train.md", f"See {link}.") == f"See {wanted}."


def test_sections_of_an_index_become_tabs_with_groups(hooks, tmp_path, monkeypatch):
    index = "# All\n\n- [no](no.md)\n\n**How it works**\n\n- [One](a/one.md): text\n\n*Part*\n\n- [Two](../two.md)\n\n**Last**\n\n- [Three](x.md)\n"
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "README.md").write_text(index)
    monkeypatch.setattr(hooks, "ROOT", tmp_path)
    assert hooks.sections("docs/README.md") == [
        {"How it works": [{"One": "docs/a/one.md"}, {"Part": [{"Two": "two.md"}]}]},
        {"Last": [{"Three": "docs/x.md"}]},
    ]


@pytest.mark.slow
def test_no_link_of_the_site_is_dead_and_nothing_is_loaded_from_elsewhere(tmp_path):
    site = tmp_path / "site"
    command = [str(Path(sys.executable).parent / "mkdocs"), "build", "--strict", "--quiet", "--site-dir", str(site)]
    process = subprocess.run(command, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    pages = {path: _Read(path.read_text()) for path in site.rglob("*.html")}
    assert len(pages) > 60
    dead = []
    for path, page in pages.items():
        for link in page.loaded:
            assert "://" not in link and not link.startswith("//"), (path, link)  # noqa: PT018
        for link in (*page.links, *page.loaded):
            if re.match(r"[a-z]+:", link):
                continue
            target, place = urldefrag(link)
            # 404.html is shown at any address, so its links begin at the root
            base = site if path.name == "404.html" else path.parent
            file = path if not target else (base / unquote(target).lstrip("/")).resolve()
            file = file / "index.html" if file.is_dir() else file
            if not file.is_file() or (place and file in pages and unquote(place) not in pages[file].places):
                dead.append((str(path.relative_to(site)), link))
    assert dead == []
