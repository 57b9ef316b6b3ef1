"""Files with results are read again, and not believed."""

import functools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.errors import StretchError
from stretch.comparison.files import rows_of_file
from stretch.planning.config import PlanConfig
from stretch.planning.plan import plan
from tests.predictors.networks import resnet50
from tests.predictors.specified import specified


@functools.cache
def planned():
    return plan(resnet50(), specified("mi9"), PlanConfig(processors=("cpu", "gpu"))).answer()


@functools.cache
def data():
    return json.dumps({"schema": 1, **planned().to_json()})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"designs": [], "pareto": []}',
        '{"segments": 1, "predicted": {}}',
        '{"median_ms": -1, "subgraphs_alone_ms": {}}',
        "[" * 100_000,
    ],
)
def test_what_is_no_result_is_refused_in_a_sentence(tmp_path, text):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(StretchError) as error:
        rows_of_file(path)
    assert str(path) in error.value.message
    assert "\n" not in error.value.message
    assert error.value.hint


def test_file_that_is_not_there_or_too_large_is_refused(tmp_path):
    with pytest.raises(StretchError, match="cannot read"):
        rows_of_file(tmp_path / "gone.json")
    path = tmp_path / "large.json"
    with path.open("wb") as file:
        file.truncate((64 << 20) + 1)
    with pytest.raises(StretchError, match="too large"):
        rows_of_file(path)


@given(at=st.integers(0, 10**9), byte=st.integers(0, 255))
def test_changed_files_give_rows_or_a_sentence(tmp_path_factory, at, byte):
    raw = bytearray(data().encode())
    raw[at % len(raw)] = byte
    path = tmp_path_factory.mktemp("f") / "f.json"
    path.write_bytes(raw)
    try:
        [row] = rows_of_file(path)
    except StretchError:
        return
    assert row.ms > 0
