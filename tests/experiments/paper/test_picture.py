"""What a figure needs is read from records, and what is missing names its command."""

import pytest

from experiments.paper.picture import Found, Need, published
from experiments.paper.published import PAPERS
from predictors.errors import StretchError

NEED = Need("e/results/r.json", "t", "python -m experiments.e.run")


def test_missing_record_names_the_command_that_makes_it(tmp_path):
    with pytest.raises(StretchError, match=r"e/results/r\.json is missing: make it with `python -m experiments\.e\.run`") as error:
        NEED.read(tmp_path)
    assert error.value.exit_code == 1


def test_every_paper_is_a_table():
    for table in PAPERS:
        assert isinstance(published(table).read(), Found)
