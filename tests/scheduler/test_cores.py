import os

import pytest

from scheduler.cores import little_core, pinned

pytestmark = pytest.mark.linux


def test_pinned_binds_the_thread_and_restores_its_affinity_after_an_error():
    before = os.sched_getaffinity(0)
    core = min(before)
    inside = []

    def fail():
        with pinned((core,)):
            inside.append(os.sched_getaffinity(0))
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert (inside, os.sched_getaffinity(0)) == ([{core}], before)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_little_core_has_the_least_capacity(tmp_path):
    cores = sorted(os.sched_getaffinity(0))
    for core in cores:
        (tmp_path / f"cpu{core}").mkdir()
        (tmp_path / f"cpu{core}" / "cpu_capacity").write_text("1024\n" if core == cores[0] else "250\n")
    assert little_core((), tmp_path) == cores[1]


def test_profile_names_the_little_core_on_an_arm_machine_without_capacities(tmp_path, monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    core = max(os.sched_getaffinity(0))
    assert little_core((9999, core), tmp_path) == core
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert little_core((core,), tmp_path) is None
