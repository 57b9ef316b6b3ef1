"""Records of jobs elsewhere state what the jobs wrote down, and nothing else."""

from experiments.gpu import origin
from experiments.records import Machine

FULL = {
    "gpu": "G",
    "cores": 4,
    "memory_gib": 8.0,
    "system": "Linux aarch64",
    "date": "2026-01-02T03:04:05+00:00",
    "cpu_load": 0.5,
    "versions": {"torch": "2"},
}


def test_origin_is_what_the_first_job_says_with_the_highest_load_and_the_last_date():
    later = FULL | {"date": "2026-01-03T00:00:00+00:00", "cpu_load": 0.2}
    assert origin([FULL, later]) == {
        "machine": Machine("G", 4, 8.0, "Linux aarch64"),
        "versions": {"torch": "2"},
        "load": 0.5,
        "date": "2026-01-03T00:00:00+00:00",
    }
