"""Damaged files of every kind, read by the real verbs: each ends with one sentence and a documented exit code, in limited memory and time."""

import shutil
from contextlib import suppress
from pathlib import Path

import onnx
import pytest

from tests.corpus import mutations
from tests.corpus.cases import COUNTS, judge, made, sound_files
from tests.corpus.pool import Child

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def sound(tmp_path_factory, tiny_bundle):
    return sound_files(tmp_path_factory.mktemp("sound"), tiny_bundle)


@pytest.fixture(scope="module")
def child(sound, tmp_path_factory):
    """The process that reads the damaged files."""
    process = Child(sound / "small", tmp_path_factory.mktemp("log") / "log")
    yield process
    process.close()


@pytest.mark.parametrize(
    ("kind", "count"),
    [*((kind, 3) for kind in list(COUNTS)[::6]), *(pytest.param(*every, marks=pytest.mark.slow) for every in COUNTS.items())],
)
def test_damaged_files_end_with_one_sentence(child, sound, tmp_path, kind, count):
    failures = {}
    for number in range(count):
        arguments, written_outside = made(kind, number, sound, tmp_path / "cases")
        if problem := judge(child.ask(arguments)) or written_outside():
            failures[number] = (" ".join(Path(argument).name if "/" in str(argument) else str(argument) for argument in arguments), problem)
        shutil.rmtree(tmp_path / "cases")
    assert failures == {}


def test_corpus_has_two_thousand_files_and_most_are_damaged_but_readable(sound):
    assert sum(COUNTS.values()) >= 2000
    sources = {name: (sound / "small" / name).read_bytes() for name in ("stem.onnx", "bundle.json")}
    changed = {mutations.onnx_model(mutations.chance("onnx", n), sources["stem.onnx"]) for n in range(30)}
    assert len(changed - {sources["stem.onnx"]}) > 24
    readable = 0
    for content in changed:
        with suppress(Exception):
            readable += bool(onnx.load_model_from_string(content).graph.node)
    assert readable > 15, "most must be well formed, or only the parser is tested"
