import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.errors import StretchError
from scheduler.formats.flatbuffer import Flatbuffer

TABLES = {
    "Root": {
        "name": (0, "string"),
        "count": (2, "i32"),
        "rows": (3, "[Row]"),
        "data": (4, "[u8]"),
        "kind": (5, "u8"),
        "more": (6, "kind?More"),
    },
    "Row": {"flag": (0, "bool"), "wide": (1, "[i64]"), "ratio": (2, "f32")},
    "Left": {"x": (0, "i8")},
    "Right": {"row": (0, "Row")},
}
FORMAT = Flatbuffer(TABLES, {"More": {1: "Left", 2: "Right"}}, "Root", b"TEST")

numbers = st.integers(-(2**31), 2**31 - 1)
rows = st.fixed_dictionaries(
    {}, optional={"flag": st.booleans(), "wide": st.lists(st.integers(-(2**63), 2**63 - 1)), "ratio": st.floats(width=32, allow_nan=False)}
)
unions = st.one_of(
    st.just({}),
    st.builds(lambda x: {"kind": 1, "more": {"x": x}}, st.integers(-128, 127)),
    st.builds(lambda row: {"kind": 2, "more": {"row": row}}, rows),
)
roots = st.builds(
    lambda fields, union: fields | union,
    st.fixed_dictionaries({}, optional={"name": st.text(), "count": numbers, "rows": st.lists(rows, max_size=5), "data": st.binary()}),
    unions,
)


def plain(value):
    """Arrays as lists, so that they compare."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, np.ndarray):
        return bytes(value) if value.dtype == np.uint8 else value.tolist()
    return [plain(each) for each in value] if isinstance(value, list) else value


def encoded(value):
    return FORMAT.encode(value | ({"data": np.frombuffer(value["data"], np.uint8)} if "data" in value else {}))


@given(roots)
def test_what_was_written_is_read_back(value):
    assert plain(FORMAT.decode(encoded(value))) == value


@given(roots, st.data())
def test_a_damaged_file_is_refused_or_read_but_nothing_else(value, data):
    content = encoded(value)
    for _ in range(3):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(StretchError):
        FORMAT.decode(content[: data.draw(st.integers(0, len(content)))])


def test_list_longer_than_the_file_is_refused():
    content = encoded({"data": b"abcdefgh"})
    at = content.find(b"abcdefgh") - 4
    content[at : at + 4] = b"\xff\xff\xff\x7f"
    with pytest.raises(StretchError, match="leads out of it"):
        FORMAT.decode(content)


@pytest.mark.slow
def test_file_that_names_one_part_many_times_ends():
    """A list of a million references to one list of a million references."""
    tables = {"Root": {"a": (0, "[Mid]")}, "Mid": {"b": (0, "[Leaf]")}, "Leaf": {"c": (0, "bool")}}
    nested = Flatbuffer(tables, {}, "Root", b"TEST")
    leaves = 800
    content = nested.encode({"a": [{"b": [{}] * leaves}] + [{}] * leaves})
    start = int.from_bytes(content[:4], "little")
    first = start + 4 + int.from_bytes(content[start + 4 : start + 8], "little") + 4
    target = first + int.from_bytes(content[first : first + 4], "little")
    for i in range(leaves + 1):
        at = first + 4 * i
        content[at : at + 4] = (target - at).to_bytes(4, "little", signed=False)
    with pytest.raises(StretchError, match="more than 500000 parts"):
        nested.decode(content)
