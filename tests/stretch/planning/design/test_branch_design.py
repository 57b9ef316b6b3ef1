import tomllib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.errors import StretchError
from stretch.planning.design.branch_design import (
    BranchDesign,
    BranchScale,
    SegmentDesign,
    design_to_toml,
    load_draft,
    undivided,
)

names = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=12)
numbers = st.integers(1, 4096)
rows = st.none() | st.tuples(st.integers(0, 4096), st.integers(0, 4096))
ends = st.none() | st.lists(names, min_size=1, max_size=3).map(tuple)
entries = st.sampled_from(["none", "slice", "project"])
scales = st.builds(BranchScale, names, numbers, numbers, entries, st.integers(0, 4096), st.integers(1, 64), rows, rows, rows, ends)
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
def test_design_written_as_toml_is_what_tomllib_reads(design):
    read = tomllib.loads(design_to_toml(design))
    wanted = msgspec.to_builtins(design)
    for branch in (branch for segment in wanted["segments"] for branch in segment["branches"]):
        for key in ("rows", "paths", "channels", "ends"):
            if branch[key] is None:  # TOML has no word for nothing
                del branch[key]
        if not branch["rewrites"]:
            del branch["rewrites"]
    if not wanted["sides"]:
        del wanted["sides"]
    assert msgspec.json.encode(read, order="sorted") == msgspec.json.encode(wanted, order="sorted")
    assert next(iter(read)) == "version"


#: As designs were written before, each branch on a line.
WRITTEN_BEFORE = r"""version = 1
model = "a \"model\"\u007f"
device = "mi9"

[[segments]]
name = "s1"
start = "input"
end = "add_1"
join = "concat"
branches = [
  { processor = "cpu", depth = 2, width = 8, entry = "slice", partition = 8, align = 8 },
  { processor = "gpu", depth = 1, width = 24, entry = "project", partition = 24, align = 4 },
]
"""


def test_design_of_an_earlier_installation_reads_and_is_kept(tmp_path):
    branches = (BranchScale("cpu", 2, 8, "slice", 8, 8), BranchScale("gpu", 1, 24, "project", 24, 4))
    design = BranchDesign('a "model"\x7f', "mi9", (SegmentDesign("s1", "input", "add_1", branches, "concat"),))
    (tmp_path / "before.toml").write_text(WRITTEN_BEFORE)
    (tmp_path / "now.toml").write_text(design_to_toml(design))
    assert load_draft(tmp_path / "before.toml") == load_draft(tmp_path / "now.toml")


@given(designs)
def test_n_meet_counts_segments_with_at_least_two_branches(design):
    assert design.n_meet == sum(len(s.branches) > 1 for s in design.segments)


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
def test_file_that_is_no_design_is_refused_in_one_sentence(tmp_path, text, reason):
    path = tmp_path / "d.toml"
    path.write_text(text)
    with pytest.raises(StretchError, match=reason):
        load_draft(path)


def test_undivided_design_has_bands_in_one_piece_and_everything_else_as_it_was():
    bands = (BranchScale("cpu", 2, 8, rows=(0, 3)), BranchScale("gpu", 2, 8, rows=(3, 9)))
    stretched = SegmentDesign("s2", "a", "b", (BranchScale("cpu", 1, 8), BranchScale("gpu", 2, 8)), "sum")
    design = BranchDesign("m", "d", (SegmentDesign("s1", "x", "a", bands, "rows"), stretched))
    found = undivided(design)
    assert found.segments == (SegmentDesign("s1", "x", "a", (BranchScale("cpu", 2, 8),), "none"), stretched)
    assert undivided(found) == found
