import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.errors import StretchError, UnknownNameError
from stretch.planning.design.branch_design import DesignDraft, design_to_toml
from stretch.planning.design.resolve import resolve_design
from stretch.planning.network.segments import split_segments
from tests.stretch.designs import random_designs

ALIGN = {"cpu": 8, "gpu": 4, "dsp": 32}


def resolve(text, graph):
    return resolve_design(msgspec.toml.decode(text, type=DesignDraft), graph, "test", ALIGN, "cpu")


@pytest.mark.torch
@given(data=st.data())
def test_complete_design_is_its_own_resolution(captured, data):
    graph = captured("tiny_mobilenet").graph
    design = data.draw(random_designs(graph))
    assert resolve(design_to_toml(design), graph) == design


@pytest.mark.torch
def test_depth_and_width_per_processor_are_enough(captured):
    graph = captured("resnet50").graph
    design = resolve('[[segments]]\nname="s2"\nbranches=[{processor="cpu",depth=4,width=256},{processor="gpu",depth=2,width=384}]', graph)
    part = next(s for s in design.segments if s.name == "s2")
    assert part.join == "project"
    assert sum(b.partition for b in part.branches) == 512
    assert [b.align for b in part.branches] == [8, 4]
    assert [s.name for s in design.segments] == [s.name for s in split_segments(graph)]


@pytest.mark.torch
def test_any_cut_points_may_bound_a_segment_and_the_stem_may_branch(captured):
    graph = captured("resnet50").graph
    design = resolve('[[segments]]\nend="layer2_1_relu_2"\nbranches=[{processor="cpu",width=256},{processor="gpu",width=256}]', graph)
    assert [(s.name, s.start, s.end) for s in design.segments] == [
        ("s1", "input", "layer2_1_relu_2"),
        ("s2_rest", "layer2_1_relu_2", "layer2_3_relu_2"),
        ("s3", "layer2_3_relu_2", "layer3_5_relu_2"),
        ("s4", "layer3_5_relu_2", "avgpool"),
        ("head", "avgpool", "fc"),
    ]


@pytest.mark.torch
def test_narrow_branch_behind_an_identity_skip_gets_an_entry(captured):
    graph = captured("resnet18").graph
    design = resolve('[[segments]]\nname="s1"\nbranches=[{processor="cpu",width=32},{processor="gpu"}]', graph)
    assert [b.entry for b in design.segments[1].branches] == ["project", "none"]


@pytest.mark.torch
@pytest.mark.parametrize(
    ("text", "error", "reason"),
    [
        ('[[segments]]\nname="s9"\nbranches=[{processor="cpu"}]', UnknownNameError, "unknown segment `s9`"),
        ('[[segments]]\nend="layer1_0_conv1"\nbranches=[{processor="cpu"}]', UnknownNameError, "unknown cut point"),
        ('[[segments]]\nname="s1"\nbranches=[{processor="npu"}]', UnknownNameError, "unknown processor `npu`"),
        ('[[segments]]\nbranches=[{processor="cpu"}]', StretchError, "neither `name` nor `end`"),
        ('[[segments]]\nname="s1"\nbranches=[]', StretchError, "has no branches"),
        ('[[segments]]\nname="s1"\nbranches=[{processor="cpu",depth=0}]', StretchError, "depth 0"),
        (
            '[[segments]]\nname="s2"\nbranches=[{processor="cpu"}]\n[[segments]]\nname="s1"\nbranches=[{processor="cpu"}]',
            StretchError,
            "order the segments|before",
        ),
        (
            '[[segments]]\nname="s1"\njoin="project"\nbranches=[{processor="cpu",partition=16},{processor="gpu"}]',
            StretchError,
            "branch `s1.gpu` of the design has no `partition`, others of its segment have",
        ),
        ('model="resnet50"\nsegments=[]', StretchError, "for the model `resnet50`"),
    ],
)
def test_wrong_design_is_refused_in_one_sentence(captured, text, error, reason):
    with pytest.raises(error, match=reason):
        resolve(text, captured("resnet18").graph)
