"""Pictures show what their records say."""

from experiments.plot import LINES, PLOTS, draw, draw_lines
from tests.contracts.repository import ROOT


def test_pictures_are_those_of_their_records():
    for plots, drawing in ((PLOTS, draw), (LINES, draw_lines)):
        for plot in plots:
            assert (ROOT / plot.out).read_text() == drawing(plot), f"{plot.out}: run python -m experiments.plot"
