"""Bad input and bad bundles give one sentence and the right exit code, compute nothing and leave no files."""

import contextlib
import resource
import signal
import sys

import pytest

from stretch.cli.output import Output
from tests.stretch.cli.commands import LOOSE, call, tree
from tests.stretch.train.recipes import network

pytestmark = pytest.mark.torch

BRANCH = ("branch", "tiny_resnet", "--device", "pixel6", "--weights", "none", *LOOSE)


@pytest.fixture
def folder(tmp_path):
    """A folder that must be empty again when a command has failed."""
    path = tmp_path / "place"
    path.mkdir()
    yield path
    assert tree(path) == {}


@contextlib.contextmanager
def small_disk(size=20_000):
    """Limit the size of files in bytes, and write no bytecode of imported modules, which Python would cut off unnoticed."""
    before, writes_nothing = resource.getrlimit(resource.RLIMIT_FSIZE), sys.dont_write_bytecode
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    sys.dont_write_bytecode = True
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        sys.dont_write_bytecode = writes_nothing


def test_full_disk_ends_in_one_sentence(capsys, folder):
    with small_disk():
        result = call(capsys, *BRANCH, "--out", folder / "bundle")
    assert result.code == 1
    assert "cannot write the bundle" in result.message


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (("search", "tiny_resnet", "--device", "a03s", "--alpha", 100, "--out"), "cannot write the designs"),
        (("export", "tiny_resnet", "--weights", "none", "--as", "code", "--out"), "cannot write the package"),
        (("predict", "tiny_resnet", "--device", "a03s", "--processor", "cpu", "--plot"), "cannot write the picture"),
    ],
)
def test_full_disk_leaves_nothing_of_an_output(capsys, folder, command, sentence):
    with small_disk(200):
        result = call(capsys, *command, folder / ("net.svg" if "--plot" in command else "net"))
    assert (result.code, sentence in result.message) == (1, True), result.err


def test_training_that_cannot_begin_on_a_full_disk_leaves_no_folder_that_a_second_try_refuses(capsys, folder, tmp_path):
    with small_disk(5000):
        result = call(capsys, "train", network(tmp_path), "--out", folder / "run")
    assert (result.code, "the disk is full" in result.message) == (1, True), result.err


@pytest.mark.slow
def test_earlier_bundle_survives_when_its_successor_cannot_be_written(capsys, tmp_path):
    out = tmp_path / "bundle"
    assert call(capsys, *BRANCH, "--out", out, "--set", "controls=false", "--set", "seed=1").code == 0
    earlier = tree(tmp_path)
    with small_disk():
        result = call(capsys, *BRANCH, "--out", out, "--set", "controls=false", "--set", "seed=2")
    assert (result.code, tree(tmp_path)) == (1, earlier)


def interrupting(monkeypatch, begins):
    """Send Ctrl-C at the first step of a verb's progress for which `begins` is true."""
    progress = Output.progress

    @contextlib.contextmanager
    def interrupted(self, what, total=None):
        with progress(self, what, total) as step:

            def stepped(doing=""):
                step(doing)
                if begins(doing):
                    signal.raise_signal(signal.SIGINT)

            yield stepped

    monkeypatch.setattr(Output, "progress", interrupted)


PHASES = (
    "import torch",
    "load",
    "capture",
    "plan",
    "transform",
    "export",
    "export stem.",  # on any processor
    "export model",
    "export controls",
    "export checks",
)


@pytest.mark.representatives(3)
@pytest.mark.parametrize("phase", PHASES)
def test_interrupt_in_any_phase_leaves_nothing_behind(capsys, folder, monkeypatch, phase):
    interrupting(monkeypatch, lambda doing: doing == phase or (phase.endswith(".") and doing.startswith(phase)))
    result = call(capsys, *BRANCH, "--out", folder / "bundle")
    assert (result.code, result.message) == (130, "interrupted")


def test_interrupt_of_a_run_ends_with_130_and_writes_no_trace(capsys, tiny_bundle, folder, monkeypatch):
    interrupting(monkeypatch, lambda doing: True)
    result = call(capsys, "run", tiny_bundle, "--trace", folder / "trace.json", "--repeat", 1, "--warmup", 0)
    assert (result.code, result.message) == (130, "interrupted")
