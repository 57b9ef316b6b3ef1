from math import prod

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from predictors.errors import StretchError
from scheduler import tuning
from scheduler.delegates.opencl.tuner import Limits, exhaustive_sizes, fast_convolution_size, fast_size
from tests.effort import examples

names = st.text("abcxyz0123 ->", max_size=20)
parameters = st.dictionaries(st.sampled_from(["VW", "VC", "x"]), st.integers(0, 64))
ms = st.floats(0, 1e3)
entries = st.builds(tuning.Entry, st.sampled_from(["schedule", "workgroup"]), names, names, names, parameters, ms, ms)


def entry(shape="s", **parameters):
    return tuning.Entry("schedule", "conv", "hash", shape, parameters or {"VW": 6}, 1.0, 2.0)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(20))
@given(st.lists(entries, max_size=8))
def test_saved_entries_are_read_again(tmp_path_factory, found):
    folder = tmp_path_factory.mktemp("c")
    tuning.TuningCache("d", "v", folder).save(found)
    reopened, last = tuning.TuningCache("d", "v", folder), {item.key: item for item in found}
    for kind in ("schedule", "workgroup"):
        assert {item.key: item for item in reopened.entries(kind)} == {key: item for key, item in last.items() if item.kind == kind}


def test_two_writers_keep_each_others_entries(tmp_path):
    one, other = tuning.TuningCache("d", "v", tmp_path), tuning.TuningCache("d", "v", tmp_path)
    one.save([entry("a")])
    other.save([entry("b")])
    assert {item.shape for item in tuning.TuningCache("d", "v", tmp_path).entries("schedule")} == {"a", "b"}


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe", b"[]", b'{"schema": 1, "device": "d", "driver": "v", "entries": [{"kind": "x"}]}']
)
def test_damaged_file_is_ignored_with_a_warning_and_replaced_by_saving(tmp_path, content):
    tuning.TuningCache("d", "v", tmp_path).path.write_bytes(content)
    with pytest.warns(UserWarning, match="is ignored"):
        cache = tuning.TuningCache("d", "v", tmp_path)
    assert cache.entries("schedule") == []
    with pytest.warns(UserWarning, match="is ignored"):
        cache.save([entry()])
    assert tuning.TuningCache("d", "v", tmp_path).entries("schedule") == [entry()]


def test_too_large_file_and_file_of_another_device_are_ignored_with_a_warning(tmp_path, monkeypatch):
    tuning.TuningCache("d", "v", tmp_path).save([entry()])
    monkeypatch.setattr("scheduler.tuning.FOLDER", tmp_path)
    tuning.write_entries(tuning.shipped_path("adreno"), "pocl-avx2", tuning.ANY_DRIVER, [entry()])
    with pytest.warns(UserWarning, match="made on pocl-avx2"):
        assert tuning.shipped_entries("adreno") == []
    monkeypatch.setattr("scheduler.tuning.MAX_BYTES", 10)
    with pytest.warns(UserWarning, match="too large"):
        assert tuning.TuningCache("d", "v", tmp_path).entries("schedule") == []


@pytest.mark.parametrize("path", sorted(tuning.FOLDER.glob("*.json")), ids=lambda path: path.stem)
def test_shipped_entries_are_of_the_current_kernels(path):
    """If a kernel's source changed, run ``python -m experiments.opencl_tuning.ship`` on an idle machine."""
    from scheduler.delegates.opencl.tuner import kernel_hash

    entries = tuning.read_entries(path, path.stem.replace("-half", " half"), tuning.ANY_DRIVER)
    assert entries
    assert [item for item in entries if item.source != kernel_hash(item.kernel) or item.ms > item.default_ms] == []


class Clock:
    """Returns the given times of each candidate in order, and the last time repeatedly."""

    def __init__(self, times):
        self.times = {key: list(values) for key, values in times.items()}
        self.asked = []

    def __call__(self, candidate):
        self.asked.append(candidate)
        values = self.times[candidate]
        return values.pop(0) if len(values) > 1 else values[0]


def test_minimum_of_interleaved_times_decides():
    clock = Clock({None: [10.0], "a": [9.0], "b": [11.0, 5.0, 5.0]})
    assert tuning.quickest(["a", "b"], clock) == ("b", 5.0, 10.0)
    assert clock.asked == [None, "a", "b", None, "a", "b", None, "b"]


@pytest.mark.parametrize(
    ("times", "best"),
    [({"a": [9.8]}, None), ({}, None), ({"a": [None], "b": [5.0]}, "b"), ({"a": [5.0], "b": [1.0]}, "a")],
    ids=["gains no more than noise", "none", "refused by the device", "out of time"],
)
def test_default_stays_unless_a_candidate_measured_in_time_gains_more_than_noise(times, best):
    clock = Clock({None: [10.0], **times})
    result = tuning.quickest(list(times), clock, out_of_time=lambda: times.get("b") == [1.0] and "a" in clock.asked)
    assert result[:2] == (best, 10.0 if best is None else 5.0)


@given(st.data())
def test_quickest_is_never_slower_than_the_default_for_any_noise_of_single_measurements(data):
    """Each candidate has a true time: a measurement is this time or, on a busy machine, longer."""
    truth = data.draw(st.dictionaries(st.integers(0, 9), st.floats(0.1, 100), max_size=8))
    default = data.draw(st.floats(0.1, 100))
    quiet = data.draw(st.integers(0, 2))
    turns = dict.fromkeys((None, *truth), 0)

    def measure(candidate):
        """Time of a candidate, which is exact in one turn of three and may be longer in the others."""
        turn, turns[candidate] = turns[candidate], turns[candidate] + 1
        slowed = 1 if turn % 3 == quiet else data.draw(st.floats(1, 3))
        return slowed * (default if candidate is None else truth[candidate])

    best, _, _ = tuning.quickest(list(truth), measure)
    if best is not None:
        assert truth[best] < default
    else:
        # A candidate that was measured in every turn and is faster by more than the margin would have been chosen.
        assert all(time > 0.97 * default for time in truth.values() if 3 * time <= tuning.DROP_RATIO * min(default, *truth.values()))


WIDE = Limits(256, (1024, 1024, 64))

grids = st.lists(st.integers(1, 70), min_size=1, max_size=3).map(tuple)
limits = st.builds(Limits, st.integers(1, 512), st.tuples(*[st.integers(1, 64)] * 3))


def test_fast_mode_follows_the_formulas_of_the_paper():
    # z = gbdp(32) = 8, xy = 256 // 8 = 32, x = min(⌈56 / 2⌉, 32) = 28, y = min(32 // 28, 56) = 1
    assert fast_size((56, 56, 32), WIDE) == (28, 1, 8)
    # z = gbdp(35) = 7, the greatest odd divisor below 35, and 1 for a prime
    assert [fast_size((4, 4, z), WIDE)[2] for z in (35, 11, 6)] == [7, 1, 2]
    # z = gbd(32, 16) = 16, xy = 256 // 16 = 16, x = min(56, 16) = 16, y = min(1, 56) = 1
    assert fast_convolution_size((56, 56, 32), WIDE) == (16, 1, 16)
    # z = gbd(4, 16) = 4, xy = 64, x = 7, y = min(9, 7) = 7, the whole of an odd dimension
    assert fast_convolution_size((7, 7, 4), WIDE) == (7, 7, 4)
    # y = gy and gy is even: y is halved
    assert fast_convolution_size((8, 8, 4), WIDE) == (8, 4, 4)


@given(grids, limits)
def test_all_sizes_of_both_modes_are_allowed_and_the_exhaustive_mode_has_at_least_one(grid, limit):
    assert limit.allow(fast_size(grid, limit))
    assert limit.allow(fast_convolution_size(grid, limit))
    result = exhaustive_sizes(grid, limit)
    assert len(set(result)) == len(result) > 0
    assert all(limit.allow(size) for size in result)


def test_exhaustive_mode_takes_divisors_with_32_work_items_or_else_smaller_groups():
    result = exhaustive_sizes((12, 10, 4), WIDE)
    assert all(12 % x == 0 and 10 % y == 0 and 4 % z == 0 and 32 <= prod((x, y, z)) <= 256 for x, y, z in result)
    assert (12, 10, 2) in result
    assert exhaustive_sizes((5, 3, 1), WIDE) == [(x, y, 1) for y in (1, 2, 3) for x in (2, 3, 5)]
    assert exhaustive_sizes((5, 3, 1), Limits(1, (1, 1, 1))) == [(1, 1, 1)]
    with pytest.raises(StretchError, match="no work-group at all"):
        exhaustive_sizes((4, 4, 4), Limits(0, (1, 1, 1)))
