import pytest

from predictors.devices import PROFILE_FOLDER
from tests.scheduler.bundles import two_branches
from tests.stretch.cli.commands import call
from tests.stretch.tools.phone.adb import Player
from tests.stretch.tools.phone.bundles import BENCHMARK, END, START, command, made, timed

pytest.importorskip("ai_edge_litert")
pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return made(tmp_path_factory.mktemp("cli"), lambda path: two_branches(path, 1, ("cpu", "gpu")))


@pytest.fixture
def adb(monkeypatch, tmp_path):
    return Player(monkeypatch, tmp_path / "adb")


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "benchmark_model"
    path.write_text("benchmark_model of a release")
    return path


@pytest.fixture(scope="module")
def folder(bundle, tmp_path_factory):
    """The same bundle by its name on disk."""
    path = tmp_path_factory.mktemp("folder")
    made(path, lambda inside: two_branches(inside, 1, ("cpu", "gpu")))
    return path / "bundle"


def all_well(bundle):
    calls = [*START, *BENCHMARK]
    for sub in bundle.manifest.subgraphs:
        calls += timed(sub, ("--use_xnnpack=true",), 3, 4000.0)
        calls += timed(sub, ("--use_gpu=true",), 1, 9000.0, delegate="GPU")
    return [*calls, *END]


def test_people_are_told_that_it_is_untested_and_how_to_fit(capsys, bundle, folder, adb, program, tmp_path):
    adb.plays(all_well(bundle))
    ran = call(capsys, "run", folder, "--adb", "--serial", "R5CT", "--benchmark-model", program, "--measurements", tmp_path / "mine")
    assert "not tried on a phone yet" in ran.err
    assert "s1.gpu" in ran.out
    assert "stretch profile --fit" in ran.out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--adb", "--map", "gpu=cpu1"), "--map does not go with --adb"),
        (("--serial", "R5CT"), "--serial does not go with a run without --adb"),
        (("--adb",), "--adb needs something to run on the phone"),
        (("--adb", "--benchmark-model", "{program}", "--serial=-x"), "`-x` is no serial of a device"),
    ],
)
def test_options_that_do_not_go_together_are_refused(capsys, folder, adb, program, words, sentence):
    adb.plays([])
    failed = call(capsys, "run", folder, *(word.format(program=program) for word in words))
    assert (failed.code, sentence in failed.message) == (2, True), failed.err
    assert adb.log == []


def test_a_profile_of_ones_own_names_the_times(capsys, bundle, folder, adb, program, tmp_path):
    text = (PROFILE_FOLDER / "mi9.toml").read_text().replace('id = "mi9"', 'id = "mine"').replace('"3med"', '"1large"')
    (tmp_path / "mine.toml").write_text(text)
    first = bundle.manifest.subgraphs[0]
    adb.plays(
        [*START, *BENCHMARK, {"call": command(first.name, ("--use_xnnpack=true",), 1), "err": "adb: error: closed\n", "code": 1}, *END]
    )
    words = ("--adb", "--benchmark-model", program, "--measurements", tmp_path / "m", "--profile", tmp_path / "mine.toml")
    assert "cpu[1large]" in call(capsys, "run", folder, *words).message
    adb.ended()
    unknown = call(capsys, "run", folder, "--adb", "--benchmark-model", program, "--profile", "mine9")
    assert unknown.code == 3
