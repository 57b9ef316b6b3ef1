"""A design is searched for, or read and completed for the device."""

import pytest

from predictors.errors import StretchError
from stretch.planning.config import PlanConfig
from stretch.planning.design.branch_design import load_draft
from stretch.planning.plan import plan
from stretch.stages.design import decide_design, read_design
from tests.predictors.networks import small_resnet
from tests.predictors.specified import specified
from tests.stretch.planning.spaces import LOOSE

MI9, GRAPH = specified("mi9"), small_resnet()


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "design.toml"
    path.write_text('version = 1\n\n[[segments]]\nname = "s1"\nbranches = [{ processor = "gpu" }, { processor = "dsp" }]\n')
    return path


def test_file_and_draft_give_the_same_design_with_the_device_s_slices(file):
    design = read_design(file, GRAPH, MI9)
    assert design == read_design(load_draft(file), GRAPH, MI9)
    segment = next(segment for segment in design.segments if segment.name == "s1")
    assert {b.processor: b.align for b in segment.branches} == {name: MI9.processor(name).width_slice for name in ("gpu", "dsp")}
    assert {b.processor for s in design.segments if s.name != "s1" for b in s.branches} == {next(iter(MI9.processors))}


@pytest.mark.slow
def test_design_that_is_given_is_evaluated_and_one_that_is_not_is_searched_for(file):
    config = PlanConfig(**LOOSE)
    given = decide_design(GRAPH, MI9, config, file)
    assert given.design == read_design(file, GRAPH, MI9)
    assert given.optimal is None
    found = decide_design(GRAPH, MI9, config)
    assert found.design == plan(GRAPH, MI9, config).design


def test_file_that_is_no_design_is_refused(tmp_path):
    (tmp_path / "no.toml").write_text("x = [")
    with pytest.raises(StretchError, match=r"no\.toml"):
        decide_design(GRAPH, MI9, design=tmp_path / "no.toml")
