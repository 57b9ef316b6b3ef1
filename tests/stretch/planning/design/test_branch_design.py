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
