from dataclasses import replace

import pytest

pytest.importorskip("torch")

from predictors.errors import StretchError, UnknownNameError
from stretch.network.capture.trace import capture_traced
from stretch.planning.design.branch_design import BranchDraft, DesignDraft, SegmentDraft, SideDesign, design_to_toml, load_draft
from stretch.planning.design.scale import resolve_design, scaled_graph
from tests.stretch.several import form

pytestmark = pytest.mark.torch

ALIGN = {"cpu": 4, "gpu": 4}


@pytest.fixture(scope="module")
def graph():
    return capture_traced(*form("pyramid"), "pyramid").graph


def design_of(graph, **draft):
    return resolve_design(DesignDraft(**{"segments": [], **draft}), graph, "mi9", ALIGN, "cpu")


def test_design_with_sides_is_read_back_as_written(graph, tmp_path):
    design = design_of(graph, sides=[SideDesign("side1", "gpu")])
    file = tmp_path / "design.toml"
    file.write_text(design_to_toml(design))
    assert resolve_design(load_draft(file), graph, "mi9", ALIGN, "gpu") == design


LONG = SegmentDraft([BranchDraft("cpu")], start="stages_0_0_2", end="stages_1_2_2", name="long")
WIDE = SegmentDraft([BranchDraft(name, width=8) for name in ("cpu", "gpu")], "s1", "stages_0_0_2", "stages_0_2_2", "concat")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda graph: scaled_graph(graph, replace(design_of(graph), sides=())), StretchError, "places none outside the backbone"),
        (lambda graph: design_of(graph, sides=[SideDesign("side99", "cpu")]), UnknownNameError, "side99"),
        (lambda graph: design_of(graph, sides=[SideDesign("side1", "npu")]), UnknownNameError, "npu"),
        (lambda graph: design_of(graph, segments=[LONG]), StretchError, "beyond `stages_0_2_2`"),
        (lambda graph: design_of(graph, segments=[WIDE]), StretchError, "channels after its meeting point"),
    ],
)
def test_sides_and_segments_that_do_not_fit_are_refused(graph, call, error, message):
    with pytest.raises(error, match=message):
        call(graph)
