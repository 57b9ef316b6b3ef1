import shutil
from pathlib import Path

import pytest

from predictors.errors import UsageError
from scheduler.bundle.load import load_bundle
from scheduler.simulate.arrivals import Arrivals
from scheduler.simulate.prepare import Other, check_alternatives, parse_workload, prepare
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


def test_times_are_the_plans_on_its_device_and_the_files_on_another(bundle_dir):
    bundle, told = load_bundle(bundle_dir), []
    here = prepare(bundle, specified("pixel6"), False, told.append)
    there = prepare(bundle, specified("host"), False, told.append)
    assert not told
    assert all(dict(here.times[name].parts)["subgraph"] == 1.0 for name in here.plan.subgraphs)
    assert all(dict(there.times[name].parts).get("subgraph", 0) != 1.0 for name in there.plan.subgraphs)


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
