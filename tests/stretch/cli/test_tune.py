"""`stretch profile tune`: schedules and work-groups of a bundle's OpenCL kernels."""

import numpy as np
import pytest

from scheduler.delegates import OpenCLDelegate

if problem := OpenCLDelegate.unavailable():
    pytest.skip(problem, allow_module_level=True)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_rows_suffice_to_fit_a_profile(stretch, bundle_dir):
    """ms ≈ a + b·macs + c·bytes over all launches, convolutions and the rest."""
    rows = stretch("profile", "tune", bundle_dir, "--mode", "fast", "--budget", 0.1, "--map", "gpu=opencl", "--json")[1]["kernels"]
    measured = [row for row in rows if row["after_ms"] is not None]
    assert {row["kernel"] for row in measured} > {"conv"}
    assert all(row["bytes"] > 0 and row["shape"] for row in measured)
    features = np.array([[1.0, row["macs"] / 1e6, row["bytes"] / 1e6] for row in measured])
    ms = np.array([row["after_ms"] for row in measured])
    line, _, rank, _ = np.linalg.lstsq(features, ms, rcond=None)
    assert rank == 3, "macs and bytes vary by themselves, so that both their costs are determined"
    assert np.isfinite(line).all()
    assert ((features @ line - ms) ** 2).sum() < ((ms - ms.mean()) ** 2).sum()
