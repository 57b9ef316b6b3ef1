"""Rows say what their source says, and nothing else."""

import pytest

from scheduler.bundle.load import load_bundle
from stretch.comparison.rows import ComparedRow, bundle_row, refused_row, warnings_of


def test_row_of_a_bundle_has_what_its_manifest_states(bundle_dir):
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
    found = warnings_of([ONE, other])
    assert found == [] if said is None else len(found) == 1 and said in found[0]
