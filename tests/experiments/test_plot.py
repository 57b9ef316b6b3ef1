"""Pictures show what their records say."""

import pytest

from experiments.plot import LINES, PLOTS, draw, draw_lines
from tests.contracts.repository import ROOT


@pytest.mark.parametrize("plot", PLOTS, ids=lambda plot: plot.out)
def test_picture_is_that_of_its_record(plot):
    assert (ROOT / plot.out).read_text() == draw(plot), "run python -m experiments.plot"


@pytest.mark.parametrize("plot", LINES, ids=lambda plot: plot.out)
def test_picture_of_lines_is_that_of_its_record(plot):
    assert (ROOT / plot.out).read_text() == draw_lines(plot), "run python -m experiments.plot"
