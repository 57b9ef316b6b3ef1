"""Networks of equal latency: order of the training queue, claimed jobs, and comparison with the best plain network."""

import json

import numpy as np
import pytest

pytest.importorskip("torch")

from experiments.equal_latency.networks import RECORD, whole
from experiments.equal_latency.parents import OTHERS, RESNETS
from experiments.equal_latency.run import SEEDS, Job, claim, jobs_of
from experiments.equal_latency.summarise import difference_row, interval
from experiments.records import read_record

ROWS = read_record(RECORD).tables["networks"]


def test_no_network_takes_longer_than_its_speed_allows():
    alone = {(row["parent"], row["profile"]): row["predicted ms"] for row in ROWS if row["contender"] == "parent"}
    for row in ROWS:
        assert row["predicted ms"] <= alone[row["parent"], row["profile"]] / row["speed"] + 0.01, row["network"]


def test_queue_trains_each_network_once_per_seed_and_all_networks_before_the_next_seed():
    jobs = jobs_of(ROWS, 20, 512)
    assert (len(set(jobs)), {job.built for job in jobs}) == (len(jobs), {row["built"] for row in ROWS})
    assert jobs[0].parent in RESNETS
    for group in (RESNETS, OTHERS):
        first = [job.seed for job in jobs if job.parent in group and job.built == whole(job.parent)]
        assert (first, set(first)) == (sorted(first), set(SEEDS))


def test_job_is_claimed_once_and_a_pruned_network_waits_for_its_original(tmp_path):
    shape = json.loads(whole("resnet20"))
    pruned = Job("resnet20", json.dumps(shape | {"pruned": True}), 0, 1)
    assert claim([pruned], tmp_path) == (None, False)
    assert claim([pruned, pruned.teacher], tmp_path) == (pruned.teacher, True)
    assert claim([pruned, pruned.teacher], tmp_path) == (None, True)
    pruned.teacher.file(tmp_path, "safetensors").touch()
    assert claim([pruned, pruned.teacher], tmp_path) == (pruned, True)
    assert claim([pruned, pruned.teacher], tmp_path) == (None, False)


def test_interval_of_a_mean_is_student_t_and_of_a_difference_welch():
    from scipy import stats

    a, b = [1.0, 2.0, 4.0], [2.0, 2.5, 2.0]
    assert interval(a) == pytest.approx(stats.t.ppf(0.975, 2) * np.std(a, ddof=1) / 3**0.5)
    low, high = stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    assert interval(a, b) == pytest.approx((high - low) / 2)
    assert interval([1.0]) is None


def test_branches_are_compared_with_the_most_accurate_plain_network():
    start = "resnet20 pixel6 1.5"
    values = {f"{start} branches": [90.0, 91.0], f"{start} shallower": [88.0, 89.0], f"{start} narrower": [89.0, 90.0]}
    values[f"{start} shallower and narrower"] = [87.0, 88.0]
    row = difference_row("resnet20", "pixel6", 1.5, values, dict.fromkeys(values, 24.0))
    assert (row["which plain"], row["branches − best plain"]) == ("narrower", 1.0)
    assert difference_row("resnet20", "pixel6", 1.25, values, {}) is None
