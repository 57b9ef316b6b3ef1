"""A page is one whole file that needs nothing else, and says nothing that it was not given."""

import pytest

from predictors.errors import UsageError
from stretch.tools.report.html.page import ChartInterval, Fact, Grid, Page, Section, check_page, intervals, render, write_page
from tests.stretch.tools.report.html.reading import checked

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "a & b",
    "{{ 7 * 7 }}",
    "</style><b>",
    "../../x",
    "é🙂",
    "--",
    "]]>",
    "$\\frac{$ $x$",
)


def page(name, *more):
    drawn = intervals("drawn", name, name, [ChartInterval(name, 1.0, 0.5, 2.0, strong=True)], "ms")
    return Page(
        title=name,
        lead=[name],
        facts=[Fact(name, name, name)],
        sections=[Section("one", name, [name], [Grid(name, (name, "b"), [(name, "1")], right=(1,)), drawn]), *more],
        warnings=[name],
        made_from=[("command", name)],
    )


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_text_wherever_they_stand(name):
    seen = checked(render(page(name)))
    assert seen.text.count(" ".join(name.split())) >= 10
    assert not {"b", "i"} & set(seen.tags)


def test_tables_and_pictures_have_names_for_those_who_do_not_see_them():
    seen = checked(render(page("name", Section("two", "two", (), [Grid("folded", ("a",), [("x",)], folded=True)]))))
    assert seen.tags.count("caption") == seen.tags.count("table") == 2
    assert ("svg", "role", "img") in seen.attributes
    assert ("svg", "aria-labelledby", "drawn-title drawn-words") in seen.attributes
    assert seen.tags.count("details") == 1
    assert ("html", "lang", "en") in seen.attributes


def test_written_in_one_step_and_readable_by_others(tmp_path):
    path = tmp_path / "page.html"
    path.write_text("before")
    write_page(page("after"), path)
    assert "after" in path.read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    assert path.stat().st_mode & 0o400


@pytest.mark.parametrize(
    ("name", "says"), [("page.txt", "is no .html file"), ("gone/page.html", "does not exist"), ("folder.html", "is a folder")]
)
def test_page_that_could_not_be_written_is_refused_beforehand(tmp_path, name, says):
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(UsageError, match=says):
        check_page(tmp_path / name)
    check_page(tmp_path / "page.html")
