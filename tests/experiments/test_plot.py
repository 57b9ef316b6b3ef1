"""Pictures show what their records say."""

import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from experiments.plot import LINES, PLOTS, Lines, draw, draw_lines
from experiments.records import write_record
from tests.contracts.repository import ROOT


@pytest.mark.parametrize("plot", PLOTS, ids=lambda plot: plot.out)
def test_picture_is_that_of_its_record(plot):
    assert (ROOT / plot.out).read_text() == draw(plot), "run python -m experiments.plot"


@pytest.mark.parametrize("plot", LINES, ids=lambda plot: plot.out)
def test_picture_of_lines_is_that_of_its_record(plot):
    assert (ROOT / plot.out).read_text() == draw_lines(plot), "run python -m experiments.plot"


def test_lines_rise_where_their_values_do(tmp_path):
    rows = [{"n": number, "<a>": float(10**number), "b": 10.0} for number in range(4)]
    write_record(tmp_path / "e" / "results" / "r.json", {"t": rows}, source="simulated", command="x", runs=1, load=0.0)
    text = draw_lines(Lines("e/results/r.json", "t", {"<a>": "", "b": "2 2"}, "t", "o.svg"), tmp_path)
    ElementTree.fromstring(text)
    rising, level = ([float(pair.split()[1]) for pair in path.split("L")] for path in re.findall(r'd="M([^"]*L[^"]*)" fill="none"', text))
    assert rising == sorted(rising, reverse=True)
    # the axis is logarithmic: equal factors are equal heights
    assert len({round(a - b, 0) for a, b in pairwise(rising)}) == 1
    assert len(set(level)) == 1
    assert "&lt;a&gt;" in text
