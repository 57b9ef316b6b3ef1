from dataclasses import replace

import pytest

pytest.importorskip("torch")

from predictors.errors import StretchError, UnknownNameError
from stretch.network.capture.trace import capture_traced
from stretch.planning.design.branch_design import BranchDraft, DesignDraft, SegmentDraft, SideDraft, design_to_toml, load_draft
from stretch.planning.design.scale import resolve_design, scaled_graph
from tests.stretch.several import form

pytestmark = pytest.mark.torch

ALIGN = {"cpu": 4, "gpu": 4}


@pytest.fixture(scope="module")
def graph():
    return capture_traced(*form("pyramid"), "pyramid").graph


def design_of(graph, **draft):
    return resolve_design(DesignDraft(**{"segments": [], **draft}), graph, "mi9", ALIGN, "cpu")


def test_design_with_sides_is_read_as_it_was_written(graph, tmp_path):
    design = design_of(graph, sides=[SideDraft("side1", "gpu")])
    file = tmp_path / "design.toml"
    file.write_text(design_to_toml(design))
    assert resolve_design(load_draft(file), graph, "mi9", ALIGN, "gpu") == design


def test_design_without_its_sides_is_refused(graph):
    with pytest.raises(StretchError, match="places none outside the backbone"):
        scaled_graph(graph, replace(design_of(graph), sides=()))


@pytest.mark.parametrize(("side", "says"), [(SideDraft("side99", "cpu"), "side99"), (SideDraft("side1", "npu"), "npu")])
def test_side_or_processor_that_does_not_exist_is_refused(graph, side, says):
    with pytest.raises(UnknownNameError, match=says):
        design_of(graph, sides=[side])


@pytest.mark.parametrize(
    ("draft", "noun"),
    [
        (SegmentDraft([BranchDraft("cpu")], start="stages_0_0_2", end="stages_1_2_2", name="long"), "beyond `stages_0_2_2`"),
        (
            SegmentDraft(
                [BranchDraft(name, width=8) for name in ("cpu", "gpu")], end="stages_0_2_2", start="stages_0_0_2", name="s1", join="concat"
            ),
            "channels after its meeting point",
        ),
    ],
)
def test_segment_that_reaches_beyond_a_tap_or_widens_it_is_refused(graph, draft, noun):
    with pytest.raises(StretchError, match=noun):
        design_of(graph, segments=[draft])
