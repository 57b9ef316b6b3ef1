import json
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler.tuning import Entry, TuningCache, tuning_folder
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
    last = {each.key: each for each in found}
    assert len(again) == len(last)
    assert all(again.get(*key) == each for key, each in last.items())


def test_entry_of_another_source_or_kind_is_not_found(tmp_path):
    cache = TuningCache("d", "v", tmp_path)
    cache.save([entry()])
    assert cache.get("schedule", "conv", "hash", "s") == entry()
    assert cache.get("schedule", "conv", "other", "s") is None
    assert cache.get("workgroup", "conv", "hash", "s") is None


def test_devices_and_drivers_have_files_of_their_own(tmp_path):
    TuningCache("d", "1", tmp_path).save([entry()])
    assert len(TuningCache("d", "2", tmp_path)) == len(TuningCache("e", "1", tmp_path)) == 0


def test_two_processes_keep_each_others_entries(tmp_path):
    one, other = TuningCache("d", "v", tmp_path), TuningCache("d", "v", tmp_path)
    one.save([entry("a")])
    other.save([entry("b")])
    assert {each.shape for each in TuningCache("d", "v", tmp_path).entries("schedule")} == {"a", "b"}


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


@pytest.mark.parametrize(("key", "value", "says"), [("schema", 99, "schema 99"), ("driver", "other", r"made on d \(other\)")])
def test_file_of_another_schema_or_driver_is_ignored_with_a_warning(tmp_path, key, value, says):
    cache = TuningCache("d", "v", tmp_path)
    cache.save([entry()])
    cache.path.write_text(json.dumps(json.loads(cache.path.read_text()) | {key: value}))
    with pytest.warns(UserWarning, match=says):
        assert len(TuningCache("d", "v", tmp_path)) == 0


def test_folder_that_cannot_be_written_costs_a_warning_only(tmp_path):
    (tmp_path / "file").write_text("")
    cache = TuningCache("d", "v", tmp_path / "empty")
    cache.path = tmp_path / "file" / "x.json"
    with pytest.warns(UserWarning, match="cannot be"):
        cache.save([entry()])
    assert cache.get("schedule", "conv", "hash", "s") is not None


def test_nothing_half_written_is_left(tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    cache = TuningCache("d", "v", tmp_path)
    monkeypatch.setattr(os, "replace", full)
    with pytest.warns(UserWarning, match="No space left"):
        cache.save([entry()])
    assert list(tmp_path.iterdir()) == []


def test_folder_follows_the_users_cache_setting(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert tuning_folder() == tmp_path / "nn-stretch" / "tuning"


def test_newer_file_with_fields_that_are_not_known_is_said_to_be_newer(tmp_path):
    cache = TuningCache("d", "v", tmp_path)
    cache.path.write_text(json.dumps({"schema": 2, "device": "d", "driver": "v", "machine": "x", "entries": [{"kind": "image"}]}))
    with pytest.warns(UserWarning, match="schema 2 and not 1"):
        assert len(TuningCache("d", "v", tmp_path)) == 0


def test_too_large_file_is_not_read(tmp_path, monkeypatch):
    TuningCache("d", "v", tmp_path).save([entry()])
    monkeypatch.setattr("scheduler.tuning.cache.MAX_BYTES", 10)
    with pytest.warns(UserWarning, match="too large"):
        assert len(TuningCache("d", "v", tmp_path)) == 0


@pytest.mark.parametrize("wrong", [{"VW": -1}, {"VW": 1.5}, {"VW": "6"}, {str(i): 1 for i in range(40)}])
def test_file_with_parameters_out_of_range_is_ignored(tmp_path, wrong):
    cache = TuningCache("d", "v", tmp_path)
    cache.save([entry()])
    content = json.loads(cache.path.read_text())
    content["entries"][0]["parameters"] = wrong
    cache.path.write_text(json.dumps(content))
    with pytest.warns(UserWarning, match="is ignored"):
        assert len(TuningCache("d", "v", tmp_path)) == 0
