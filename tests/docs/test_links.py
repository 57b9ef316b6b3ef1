"""Links between pages lead somewhere, and files that pages name exist."""

import re

import pytest

from tests.contracts.repository import ROOT
from tests.docs.pages import pages

LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
NAMED = re.compile(r"`((?:predictors|scheduler|stretch|tests|experiments|docs|requirements)/[\w./-]*)`")


@pytest.mark.parametrize("page", pages(), ids=str)
def test_links_of_a_page_lead_to_files(page):
    text = (ROOT / page).read_text()
    for target in LINK.findall(text):
        if "://" not in target:
            assert ((ROOT / page).parent / target).exists(), target


@pytest.mark.parametrize("page", pages(), ids=str)
def test_paths_that_a_page_names_exist(page):
    for name in NAMED.findall((ROOT / page).read_text()):
        assert (ROOT / name).exists(), name


def test_index_of_the_documentation_lists_every_page():
    index = ROOT / "docs" / "README.md"
    linked = {(index.parent / target).resolve() for target in LINK.findall(index.read_text())}
    assert {ROOT / page for page in pages() if page.parts[0] == "docs"} - {index} <= linked


def test_pictures_describe_themselves():
    for picture in (ROOT / "docs" / "images").glob("*.svg"):
        text = picture.read_text()
        assert "<title" in text
        assert "<desc" in text
