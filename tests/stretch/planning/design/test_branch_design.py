import os

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.errors import StretchError
from stretch.planning.design.branch_design import BranchDesign, BranchScale, DesignDraft, SegmentDesign, design_to_toml, load_draft

names = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=12)
numbers = st.integers(1, 4096)
scales = st.builds(
    BranchScale, names, numbers, numbers, st.sampled_from(["none", "slice", "project"]), st.integers(0, 4096), st.integers(1, 64)
)
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
def test_design_written_as_toml_reads_back_the_same(design):
    draft = msgspec.toml.decode(design_to_toml(design), type=DesignDraft)
    assert msgspec.json.encode(draft, order="sorted") == msgspec.json.encode(design, order="sorted")


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


def test_missing_design_file_is_named(tmp_path):
    with pytest.raises(StretchError, match=r"nowhere\.toml"):
        load_draft(tmp_path / "nowhere.toml")


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_what_is_no_file_is_refused_without_waiting(tmp_path, kind):
    path = tmp_path / "endless.toml"
    os.mkfifo(path) if kind == "pipe" else path.symlink_to("/dev/zero")
    with pytest.raises(StretchError, match="it is a pipe, socket or device, not a file"):
        load_draft(path)
