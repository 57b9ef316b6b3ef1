"""Parameters that were found, kept by a user or shipped."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler.tuning import ANY_DRIVER, FOLDER, Entry, TuningCache, read_entries, shipped_entries, shipped_path, write_entries
from tests.effort import examples

names = st.text("abcxyz0123 ->", max_size=20)
entries = st.builds(
    Entry,
    st.sampled_from(["schedule", "workgroup"]),
    names,
    names,
    names,
    st.dictionaries(st.sampled_from(["VW", "VC", "x"]), st.integers(0, 64)),
    st.floats(0, 1e3),
    st.floats(0, 1e3),
)


def entry(shape="s", **parameters):
    return Entry("schedule", "conv", "hash", shape, parameters or {"VW": 6}, 1.0, 2.0)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(20))
@given(st.lists(entries, max_size=8))
def test_what_is_saved_is_found_again(tmp_path_factory, found):
    folder = tmp_path_factory.mktemp("c")
    TuningCache("d", "v", folder).save(found)
    again = TuningCache("d", "v", folder)
    last = {item.key: item for item in found}
    assert len(again) == len(last)
    assert all(again.get(*key) == item for key, item in last.items())


def test_entry_of_another_source_or_kind_is_not_found(tmp_path):
    cache = TuningCache("d", "v", tmp_path)
    cache.save([entry()])
    assert cache.get("schedule", "conv", "hash", "s") == entry()
    assert cache.get("schedule", "conv", "other", "s") is None
    assert cache.get("workgroup", "conv", "hash", "s") is None


def test_two_processes_keep_each_others_entries(tmp_path):
    one, other = TuningCache("d", "v", tmp_path), TuningCache("d", "v", tmp_path)
    one.save([entry("a")])
    other.save([entry("b")])
    assert {item.shape for item in TuningCache("d", "v", tmp_path).entries("schedule")} == {"a", "b"}


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe", b"[]", b'{"schema": 1, "device": "d", "driver": "v", "entries": [{"kind": "x"}]}']
)
def test_damaged_file_is_ignored_with_a_warning_and_mended_by_saving(tmp_path, content):
    path = TuningCache("d", "v", tmp_path).path
    path.write_bytes(content)
    with pytest.warns(UserWarning, match="is ignored"):
        cache = TuningCache("d", "v", tmp_path)
    assert len(cache) == 0
    with pytest.warns(UserWarning, match="is ignored"):
        cache.save([entry()])
    assert len(TuningCache("d", "v", tmp_path)) == 1


def test_too_large_file_is_not_read(tmp_path, monkeypatch):
    TuningCache("d", "v", tmp_path).save([entry()])
    monkeypatch.setattr("scheduler.tuning.MAX_BYTES", 10)
    with pytest.warns(UserWarning, match="too large"):
        assert len(TuningCache("d", "v", tmp_path)) == 0


ENTRY = Entry("schedule", "conv", "hash", "s", {"VW": 6}, 1.0, 2.0)


@pytest.fixture
def tables(tmp_path, monkeypatch):
    monkeypatch.setattr("scheduler.tuning.FOLDER", tmp_path)


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
    assert [item for item in entries if item.source != kernel_hash(item.kernel)] == []
    assert [item for item in entries if item.ms > item.default_ms] == []
