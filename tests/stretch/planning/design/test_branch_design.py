import tomllib
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.errors import StretchError, UnknownNameError
from stretch.planning.design.branch_design import BranchDesign, BranchScale, DesignDraft, SegmentDesign, design_to_toml, load_draft
from stretch.planning.design.scale import resolve_design, scaled_graph
from stretch.planning.network.segments import split_segments
from tests.predictors.networks import small_resnet
from tests.stretch.designs import whole

names = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=12)
numbers = st.integers(1, 4096)
rows = st.none() | st.tuples(st.integers(0, 4096), st.integers(0, 4096))
ends = st.none() | st.lists(names, min_size=1, max_size=3).map(tuple)
entries = st.sampled_from(["none", "slice", "project"])
shares = {"rows": rows, "paths": rows, "channels": rows, "ends": ends}
dropped = st.lists(st.integers(0, 64), max_size=3, unique=True).map(lambda blocks: tuple(sorted(blocks)))
scales = st.builds(BranchScale, names, numbers, numbers, entries, st.integers(0, 4096), st.integers(1, 64), dropped=dropped, **shares)
parts = st.builds(
    SegmentDesign,
    names,
    names,
    names,
    st.lists(scales, min_size=1, max_size=3).map(tuple),
    st.sampled_from(["none", "concat", "project", "sum"]),
)
designs = st.builds(BranchDesign, names, names, st.lists(parts, min_size=1, max_size=4).map(tuple))


@given(designs)
def test_design_written_as_toml_is_read_back_by_tomllib(design):
    read = tomllib.loads(design_to_toml(design))
    wanted = msgspec.to_builtins(design)
    # TOML has no null
    for branch in (branch for segment in wanted["segments"] for branch in segment["branches"]):
        for key in [key for key in ("rows", "paths", "channels", "ends", "rewrites", "dropped") if not branch[key]]:
            del branch[key]
    if not wanted["sides"]:
        del wanted["sides"]
    assert msgspec.json.encode(read, order="sorted") == msgspec.json.encode(wanted, order="sorted")
    assert next(iter(read)) == "version"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("segments = 3", "is not a design"),
        ("[[segments]]\nname='s1'\nbranches=[{processor='cpu', dept=2}]", "dept"),
        ("[[segments", "is not a design"),
        ("version = 99\nsegments = []", "version 99"),
        ("[[segments]]\nname='s1'\nbranches=[{processor='cpu', depth=100000000000000}]", "Expected `int` <="),
        ("[[segments]]\nname='s1'\nbranches=[{processor='cpu', width=inf}]", "is inf"),
        ("segments = " + "[" * 5000, "nested deeper"),
    ],
)
def test_file_that_is_not_a_design_is_refused_in_one_sentence(tmp_path, text, reason):
    path = tmp_path / "d.toml"
    path.write_text(text)
    with pytest.raises(StretchError, match=reason):
        load_draft(path)


ALIGN = {"cpu": 8, "gpu": 4, "dsp": 32}


def resolve(text, graph):
    return resolve_design(msgspec.toml.decode(text, type=DesignDraft), graph, "test", ALIGN, "cpu")


#: Two stages of four blocks; every block except the first can be dropped.
FOUR = small_resnet(blocks=(4, 4))


@given(st.sets(st.integers(1, 3)), st.sets(st.integers(1, 3)))
def test_dropped_blocks_decide_the_depth_and_are_read_back_from_the_written_file(tmp_path_factory, first, second):
    branches = ",".join(f'{{processor="{name}",dropped={list(blocks)}}}' for name, blocks in (("cpu", first), ("gpu", second)))
    design = resolve(f'[[segments]]\nname="s1"\nbranches=[{branches}]', FOUR)
    path = tmp_path_factory.mktemp("design") / "d.toml"
    path.write_text(design_to_toml(design))
    assert resolve_design(load_draft(path), FOUR, "test", ALIGN, "cpu") == design
    part = design.segments[1]
    assert [set(b.dropped) for b in part.branches] == [first, second]
    assert [b.depth for b in part.branches] == [4 - len(first), 4 - len(second)]
    # a block of three convolutions, each with its batch norm and activation, and the addition
    kinds = [op.kind for op in scaled_graph(FOUR, design).ops if op.tags.get("segment") == "s1"]
    assert kinds.count("add") == 8 - len(first) - len(second)


@pytest.mark.parametrize("text", ["dropped=[0]", "dropped=[4]", "dropped=[1],depth=4", "dropped=[1],depth=2", "dropped=[0,1,2,3,4]"])
def test_unremovable_or_missing_block_and_wrong_depth_are_refused_with_the_removable_blocks(text):
    with pytest.raises(StretchError, match=r"`s1` cannot do without the blocks [\d, ]+( and have depth \d)?$") as caught:
        resolve(f'[[segments]]\nname="s1"\nbranches=[{{processor="cpu",{text}}},{{processor="gpu"}}]', FOUR)
    assert caught.value.hint.endswith(": 1, 2, 3")


@pytest.mark.torch
def test_depth_and_width_per_processor_suffice_and_a_narrow_branch_after_a_skip_gets_an_entry(captured):
    graph = captured("resnet50").graph
    design = resolve('[[segments]]\nname="s2"\nbranches=[{processor="cpu",depth=4,width=256},{processor="gpu",depth=2,width=384}]', graph)
    part = next(s for s in design.segments if s.name == "s2")
    assert (part.join, sum(b.partition for b in part.branches), [b.align for b in part.branches]) == ("project", 512, [8, 4])
    assert [s.name for s in design.segments] == [s.name for s in split_segments(graph)]
    narrow = resolve('[[segments]]\nname="s1"\nbranches=[{processor="cpu",width=32},{processor="gpu"}]', captured("resnet18").graph)
    assert [b.entry for b in narrow.segments[1].branches] == ["project", "none"]


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


def bands(*pairs, more=""):
    branches = ",".join(f'{{processor="{name}"{rows}}}' for name, rows in pairs)
    return f'[[segments]]\nname="s1"\n{more}\nbranches=[{branches}]'


@pytest.mark.torch
def test_rows_of_each_branch_suffice_for_a_segment_in_bands(captured):
    graph = captured("tiny_resnet").graph
    rows = next(s for s in split_segments(graph) if s.name == "s1").graph
    last = rows.by_name[rows.output].shape[2]
    design = resolve(bands(("cpu", ",rows=[0,3]"), ("gpu", f",rows=[3,{last}]")), graph)
    part = next(s for s in design.segments if s.name == "s1")
    assert (part.join, [b.rows for b in part.branches]) == ("rows", [(0, 3), (3, last)])
    scaled = scaled_graph(graph, design)
    assert (scaled.by_name["s1_join"].kind, resolve(design_to_toml(design), graph)) == ("concat_rows", design)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (bands(("cpu", ",rows=[0,5]"), ("gpu", ",rows=[3,32]")), "rows 3 to 32 on gpu, where rows from 5 on are due"),
        (bands(("cpu", ",rows=[0,5]"), ("gpu", ",rows=[7,32]")), "rows 7 to 32 on gpu, where rows from 5 on are due"),
        (bands(("cpu", ",rows=[1,5]"), ("gpu", ",rows=[5,32]")), "rows 1 to 5 on cpu, where rows from 0 on are due"),
        (bands(("cpu", ",rows=[0,32]"), ("gpu", ",rows=[32,32]")), "rows 32 to 32 on gpu"),
        (bands(("cpu", ",rows=[0,5]"), ("gpu", ",rows=[5,31]")), "branches up to 31 of the 32 rows of its output"),
        (bands(("cpu", ",rows=[0,5]"), ("gpu", ",rows=[5,33]")), "branches up to 33 of the 32 rows of its output"),
        (bands(("cpu", ",rows=[0,5]"), ("gpu", "")), "its branch on gpu does not say which it computes"),
        (bands(("cpu", ",rows=[0,32]")), "one branch, and rows are divided among two or more"),
        (bands(("cpu", ",rows=[0,5]"), ("gpu", ",rows=[5,32]"), more='join="sum"'), "branches of some rows, which `sum` does not join"),
        (bands(("cpu", ",rows=[0,5],depth=1"), ("gpu", ",rows=[5,32]")), "computes a band of rows, so it has all 3 blocks"),
        (bands(("cpu", ",rows=[0,5],width=8"), ("gpu", ",rows=[5,32]")), "computes a band of rows"),
    ],
)
def test_rows_that_do_not_divide_a_segment_are_refused_with_its_name(captured, text, reason):
    graph = captured("tiny_resnet").graph
    with pytest.raises(StretchError, match=reason) as caught:
        scaled_graph(graph, resolve(text, graph))
    assert "s1" in caught.value.message
    assert caught.value.hint


@pytest.mark.torch
def test_processors_without_a_row_are_refused(captured):
    graph = captured("tiny_resnet").graph
    stages = split_segments(graph)
    low = min((s for s in stages if len(s.graph.by_name[s.end].shape) == 4), key=lambda s: s.graph.by_name[s.end].shape[2])
    rows = low.graph.by_name[low.end].shape[2]
    many = [BranchScale(f"cpu{i}", low.depth, low.width, rows=(i, i + 1)) for i in range(rows + 1)]
    parts = [replace(whole(s), branches=tuple(many), join="rows") if s is low else whole(s) for s in stages]
    with pytest.raises(StretchError, match=f"segment `{low.name}` has {rows} rows for {rows + 1} processors"):
        scaled_graph(graph, BranchDesign(graph.name, "test", tuple(parts)))


@pytest.mark.torch
@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        *((rows, msgspec.ValidationError, r"\$\.segments\[0\]\.branches\[0\]\.rows") for rows in ("[-1, 4]", "[0.5, 4]", "3")),
        *((rows, StretchError, r"`s1` has rows = \[.*\] on cpu, which is no range") for rows in ("[0]", "[0, 2, 4]", '["a", 4]')),
    ],
)
def test_rows_other_than_a_pair_of_integers_are_refused(captured, rows, error, message):
    with pytest.raises(error, match=message) as caught:
        resolve(bands(("cpu", f",rows={rows}"), ("gpu", ",rows=[5,32]")), captured("tiny_resnet").graph)
    assert error is not StretchError or "[first, behind the last]" in caught.value.hint
