"""Pictures show what their records say."""

import re
from xml.etree import ElementTree

import pytest

from experiments.plot import PLOTS, draw
from experiments.records import Machine, write_record
from tests.contracts.repository import ROOT


@pytest.mark.parametrize("plot", PLOTS, ids=lambda plot: plot.out)
def test_picture_is_that_of_its_record(plot):
    assert (ROOT / plot.out).read_text() == draw(plot), "run python -m experiments.plot"


def test_dots_stand_in_the_order_of_their_values_and_names_are_escaped(tmp_path):
    rows = [{"name": f"<{value}>", "top-1 %": value, "95 % interval ±": 0.5} for value in (3.0, 1.0, 2.0)]
    path = tmp_path / "e" / "results" / "r.json"
    write_record(path, {"ratios": rows}, source="measured", command="x", runs=1, load=0.0, machine=Machine("p", 1, 1.0, "s"))
    plot = type(PLOTS[0])("e/results/r.json", "ratios", "top-1 %", "t", "o.svg", "95 % interval ±")
    text = draw(plot, tmp_path)
    ElementTree.fromstring(text)
    dots = [float(found) for found in re.findall(r'cx="([\d.]+)"', text)]
    assert sorted(range(3), key=lambda i: dots[i]) == [1, 2, 0]
    assert "&lt;3.0&gt;" in text
