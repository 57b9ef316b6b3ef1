"""Results side by side, and files that are none."""

import functools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.errors import StretchError
from scheduler.bundle.load import load_bundle
from stretch.comparison import ComparedRow, bundle_row, refused_row, rows_of_file, warnings_of
from stretch.planning.config import PlanConfig
from stretch.planning.plan import plan
from tests.predictors.networks import resnet50
from tests.predictors.specified import specified
from tests.stretch.cli.conftest import bundle_dir, bundles  # noqa: F401


def test_row_of_a_bundle_has_what_its_manifest_states(bundle_dir):  # noqa: F811
    bundle = load_bundle(bundle_dir)
    row = bundle_row("b", bundle)
    assert (row.model, row.device, row.kind) == (bundle.manifest.model.name, bundle.manifest.device, "bundle")
    assert row.macs_ratio == bundle.manifest.model.macs / bundle.manifest.model.original_macs
    assert row.n_meet == 2
    # it was written without predictions
    assert (row.ms, row.speedup, row.probability, row.agreement) == (None, None, None, None)


ONE = ComparedRow(name="a", kind="plan", model="m", device="d", ms=1.0)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (ComparedRow(name="b", kind="plan", model="m", device="d", ms=2.0), None),
        (ComparedRow(name="b", kind="run", source="measured", model="m", device="d", ms=2.0), "predicted for a device and others measured"),
        (ComparedRow(name="b", kind="plan", model="m", device="e", ms=2.0), "several devices"),
        (ComparedRow(name="b", kind="plan", model="n", device="d", ms=2.0), "several networks"),
        (refused_row("b", "m", "d", "no design fits"), "b: no design fits"),
    ],
)
def test_what_does_not_compare_is_said(other, said):
    warnings = warnings_of([ONE, other])
    assert warnings == [] if said is None else len(warnings) == 1 and said in warnings[0]


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
