import shutil
from pathlib import Path

import pytest

from predictors.errors import StretchError, UnknownNameError, UsageError
from scheduler.bundle.load import load_bundle
from scheduler.simulate.arrivals import Arrivals
from scheduler.simulate.prepare import ConcurrentWorkload, Other, check_alternatives, check_workloads, parse_other, parse_workload, prepare
from tests.predictors.specified import specified


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("runs/b", (Path("runs/b"), None, None, None)),
        ("runs/b@periodic:20", (Path("runs/b"), Arrivals("periodic", 20.0), "periodic:20", None)),
        ("runs/b@periodic:20@7.5", (Path("runs/b"), Arrivals("periodic", 20.0), "periodic:20", 7.5)),
        ("runs/b@2@poisson:50", (Path("runs/b@2"), Arrivals("poisson", 20.0), "poisson:50", None)),
        ("runs/b@home", (Path("runs/b@home"), None, None, None)),
    ],
)
def test_guest_is_a_folder_and_when_it_asks(text, want):
    assert parse_workload(text) == want


@pytest.mark.parametrize("text", ["b@periodic:nan", "b@poisson:0", "b@periodic:", "b@poisson:-1"])
def test_requests_of_a_guest_that_make_no_sense_are_refused(text):
    with pytest.raises(UsageError):
        parse_workload(text)


def test_times_are_the_plans_on_its_device_and_the_files_on_another(bundle_dir):
    bundle, told = load_bundle(bundle_dir), []
    here = prepare(bundle, specified("pixel6"), False, told.append)
    there = prepare(bundle, specified("host"), False, told.append)
    assert not told
    assert all(dict(here.times[name].parts)["subgraph"] == 1.0 for name in here.plan.subgraphs)
    assert all(dict(there.times[name].parts).get("subgraph", 0) != 1.0 for name in there.plan.subgraphs)


def test_device_without_a_processor_of_the_bundle_is_refused(bundle_dir):
    with pytest.raises(UnknownNameError, match="gpu"):
        prepare(load_bundle(bundle_dir), specified("raspberrypi4"), False, print)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda data: data["model"].update(name="other"), "its network is other, not tiny"),
        (lambda data: data.update(device="mi9"), "its device is mi9, not pixel6"),
        (lambda data: data["model"].update(original_macs=1), "multiply-accumulates is 1, not"),
    ],
)
def test_bundle_of_another_network_or_device_is_no_alternative(bundles, bundle_dir, tmp_path, change, told):
    other = shutil.copytree(bundle_dir, tmp_path / "other")
    bundles.edit(other, change)
    with pytest.raises(UsageError, match=told):
        check_alternatives(load_bundle(bundle_dir), [Other("other", load_bundle(other))])


def test_guest_of_another_device_wants_a_device_for_both(bundles, bundle_dir, tmp_path):
    other = shutil.copytree(bundle_dir, tmp_path / "other")
    bundles.edit(other, lambda data: data.update(device="mi9"))
    with pytest.raises(UsageError, match="was planned for mi9"):
        check_workloads(load_bundle(bundle_dir), [ConcurrentWorkload(load_bundle(other))])
    check_workloads(load_bundle(bundle_dir), [ConcurrentWorkload(load_bundle(bundle_dir))])


def test_plan_to_change_to_is_the_bundle_on_some_of_its_processors_or_another_folder(bundle_dir):
    bundle = load_bundle(bundle_dir)
    moved = parse_other(" cpu", bundle)
    assert moved.name == f"{bundle_dir} on cpu"
    assert {entry.processor for entry in moved.bundle.manifest.subgraphs} == {"cpu"}
    assert parse_other(str(bundle_dir), bundle).bundle == bundle
    with pytest.raises(StretchError, match="npu is not a bundle"):
        parse_other("npu", bundle)


def test_subgraphs_of_one_processor_do_not_slow_each_other(bundles, bundle_dir):
    def contend(data):
        for entry in data["subgraphs"]:
            entry.update(contention=1.5, alternatives={name: {"ms": 2.0} for name in ("cpu", "gpu")})

    bundles.edit(bundle_dir, contend)
    bundle, device = load_bundle(bundle_dir), specified("pixel6")
    apart = prepare(bundle, device, False, print)
    together = prepare(parse_other("cpu", bundle).bundle, device, False, print)
    assert dict(apart.times["s1.cpu"].parts)["subgraph"] == 1.5
    assert together.times["s1.gpu"].parts == (("subgraph", 2.0),)


def test_what_moves_computes_in_the_precision_that_the_plan_has_there(bundles, bundle_dir):
    def narrow(data):
        for entry in data["subgraphs"]:
            entry.update(planned_precision="fp16" if entry["processor"] == "gpu" else "int8")

    bundles.edit(bundle_dir, narrow)
    moved = parse_other("cpu", load_bundle(bundle_dir)).bundle
    assert {entry.planned_precision for entry in moved.manifest.subgraphs} == {"int8"}
    assert prepare(moved, specified("pixel6"), False, print).times


@pytest.mark.parametrize("deadline", ["", "0", "-1", "nan", "inf", "soon"])
def test_guest_s_deadline_that_is_none_is_refused(deadline):
    with pytest.raises(UsageError, match="is no deadline"):
        parse_workload(f"runs/b@periodic:20@{deadline}")
