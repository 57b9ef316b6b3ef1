"""Wrong files of every kind through the real verbs: each ends in one sentence and a code of the contract, in bounded memory and time."""

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
    """The process that the wrong files are given to."""
    process = Child(sound / "small", tmp_path_factory.mktemp("log") / "log")
    yield process
    process.close()


def judged(child, sound, tmp_path, kind, numbers):
    """Forbidden effects of the wrong files of a kind with these numbers."""
    failures = {}
    for number in numbers:
        words, strayed = made(kind, number, sound, tmp_path / "cases")
        if problem := judge(child.ask(words)) or strayed():
            failures[number] = (" ".join(Path(word).name if "/" in str(word) else str(word) for word in words), problem)
        shutil.rmtree(tmp_path / "cases")
    return failures


@pytest.mark.parametrize("kind", list(COUNTS)[::6])
def test_some_wrong_files_end_in_one_sentence(child, sound, tmp_path, kind):
    assert judged(child, sound, tmp_path, kind, range(3)) == {}


@pytest.mark.slow
@pytest.mark.parametrize("kind", COUNTS)
def test_every_wrong_file_of_the_corpus_ends_in_one_sentence(child, sound, tmp_path, kind):
    assert judged(child, sound, tmp_path, kind, range(COUNTS[kind])) == {}


def test_corpus_has_two_thousand_files_of_which_most_are_wrong(sound):
    assert sum(COUNTS.values()) >= 2000
    sources = {name: (sound / "small" / name).read_bytes() for name in ("stem.onnx", "bundle.json")}
    changed = {mutations.onnx_model(mutations.chance("onnx", n), sources["stem.onnx"]) for n in range(30)}
    assert len(changed - {sources["stem.onnx"]}) > 24
    readable = 0
    for content in changed:
        with suppress(Exception):
            readable += bool(onnx.load_model_from_string(content).graph.node)
    assert readable > 15, "most must be well formed, or only the parser is tested"
