import shutil

import numpy as np
import pytest

from tests.stretch.cli.commands import call, tree

pytest.importorskip("torch")
pytestmark = pytest.mark.torch


@pytest.fixture
def bundle(tiny_bundle, tmp_path):
    (tmp_path / "images").mkdir()
    some = np.kron(2 * np.random.default_rng(0).standard_normal((40, 3, 2, 2)), np.ones((16, 16))).astype(np.float32)
    np.save(tmp_path / "images" / "some.npy", some)
    return shutil.copytree(tiny_bundle, tmp_path / "bundle")


def asked(bundle, *more):
    return ("refine", bundle, "--images", bundle.parent / "images", "--image-count", 32, "--run-images", 2, *more)


def test_people_are_told_what_changed_and_where_the_bundle_is(capsys, bundle):
    result = call(capsys, *asked(bundle, "--steps", 2, "--out", bundle.parent / "new"))
    assert result.code == 0, result.err
    assert "2 steps in" in result.out
    assert "before, on 10 images held back" in result.out
    assert result.out.rstrip().endswith(f"stretch run {bundle.parent / 'new'}")
    assert call(capsys, "verify", bundle.parent / "new").code == 0


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [(("--minutes", "0"), 2, "--minutes 0 is no time to refine for"), (("--steps", "0"), 2, "steps")],
)
def test_wrong_words_are_refused_and_nothing_is_left(capsys, bundle, words, code, why):
    before = tree(bundle.parent)
    result = call(capsys, *asked(bundle, *words))
    assert result.code == code
    assert why in result.message
    assert tree(bundle.parent) == before
