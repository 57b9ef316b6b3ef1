import pytest

from scheduler.tuning import Entry, shipped_entries
from scheduler.tuning.cache import read_entries, write_entries
from scheduler.tuning.shipped import ANY_DRIVER, FOLDER, shipped_path

ENTRY = Entry("schedule", "conv", "hash", "s", {"VW": 6}, 1.0, 2.0)


@pytest.fixture
def tables(tmp_path, monkeypatch):
    monkeypatch.setattr("scheduler.tuning.shipped.FOLDER", tmp_path)


def test_file_under_another_kinds_name_is_ignored_with_a_warning(tables):
    write_entries(shipped_path("adreno"), "pocl-avx2", ANY_DRIVER, [ENTRY])
    with pytest.warns(UserWarning, match="made on pocl-avx2"):
        assert shipped_entries("adreno") == []


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.json")), ids=lambda path: path.stem)
def test_what_is_shipped_fits_the_kernels_as_they_are(path):
    """Fails when a kernel's source was changed: run ``python -m experiments.opencl_tuning.ship`` on a quiet machine."""
    from scheduler.delegates.opencl.tuner import kernel_hash

    entries = read_entries(path, path.stem.replace("-half", " half"), ANY_DRIVER)
    assert entries
    assert [each for each in entries if each.source != kernel_hash(each.kernel)] == []
    assert [each for each in entries if each.ms > each.default_ms] == []
