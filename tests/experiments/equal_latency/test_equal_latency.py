"""Networks of equal latency: order of the training queue, claimed jobs, and comparison with the best plain network."""

import json

import numpy as np
import pytest

pytest.importorskip("torch")

from experiments.equal_latency.networks import RECORD, whole
from experiments.equal_latency.parents import OTHERS, PARENTS, RESNETS
from experiments.equal_latency.run import SEEDS, Job, claim, jobs_of, network
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


@pytest.mark.parametrize("start", ["pruned", "fine_tuned"])
def test_job_is_claimed_once_and_a_network_made_from_a_trained_original_waits_for_it(tmp_path, start):
    shape = json.loads(whole("resnet20"))
    job = Job("resnet20", json.dumps(shape | {start: True}), 0, 1)
    assert claim([job], tmp_path) == (None, False)
    assert claim([job, job.teacher], tmp_path) == (job.teacher, True)
    assert claim([job, job.teacher], tmp_path) == (None, True)
    job.teacher.file(tmp_path, "safetensors").touch()
    assert claim([job, job.teacher], tmp_path) == (job, True)
    assert claim([job, job.teacher], tmp_path) == (None, False)


def test_fine_tuned_network_starts_from_the_weights_of_the_trained_original(tmp_path):
    import torch
    from safetensors.torch import save_file

    original = PARENTS["resnet20"].make().eval()
    job = Job("resnet20", json.dumps(json.loads(whole("resnet20")) | {"fine_tuned": True}), 0, 1)
    save_file({name: tensor.contiguous() for name, tensor in original.state_dict().items()}, job.teacher.file(tmp_path, "safetensors"))
    image = torch.rand(1, 3, 32, 32)
    torch.testing.assert_close(network(job, tmp_path)(image), original(image), atol=1e-4, rtol=1e-4)


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
