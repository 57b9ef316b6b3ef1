"""What a figure needs is read from records, and what is missing names its command."""

import pytest

from experiments.paper.picture import Found, Need, Picture, published
from experiments.paper.published import PAPERS
from experiments.records import Machine, write_record
from predictors.errors import StretchError

NEED = Need("e/results/r.json", "t", "python -m experiments.e.run")


@pytest.fixture
def root(tmp_path):
    """A repository with one record."""
    rows = [{"name": "a", "ms": 2.0}, {"name": "b", "ms": 4.0}]
    write_record(tmp_path / NEED.record, {"t": rows}, source="measured", command="x", runs=1, load=0.0, machine=Machine("p", 1, 1.0, "s"))
    return tmp_path


def test_table_is_read_by_row_and_column(root):
    assert NEED.read(root).value("b", "ms") == 4.0
    assert [row["name"] for row in NEED.read(root).rows] == ["a", "b"]


def test_missing_record_names_the_command_that_makes_it(tmp_path):
    with pytest.raises(StretchError, match=r"e/results/r\.json is missing: make it with `python -m experiments\.e\.run`") as error:
        NEED.read(tmp_path)
    assert error.value.exit_code == 1


def test_record_without_the_table_names_the_command_too(root):
    with pytest.raises(StretchError, match=r"has no table `other`: make it anew with `python -m experiments\.e\.run`"):
        Need(NEED.record, "other", NEED.command).read(root)


def test_missing_row_is_named(root):
    with pytest.raises(StretchError, match="has no row `c`"):
        NEED.read(root).row("c")


def test_every_paper_is_a_table():
    for table in PAPERS:
        assert isinstance(published(table).read(), Found)


def test_picture_is_drawn_from_what_it_needs(root):
    pytest.importorskip("matplotlib")
    from experiments.paper.chart import Line, Panel, point_of, rows_figure

    def draw(tables):
        own = tables["own"]
        return rows_figure([Panel("t", "ms", (Line("a", (point_of(own.record, "t", own.row("a"), "ms"),)),))])

    assert Picture("t", "w", {"own": NEED}, draw).svg("name", root).startswith("<svg ")
