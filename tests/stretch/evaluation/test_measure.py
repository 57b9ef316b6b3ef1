"""Labelled images, shares of right and equal answers, their intervals, and the answer that tells them."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.errors import StretchError
from stretch.evaluation.agreement import share_of
from stretch.evaluation.measure import evaluate, find_images


def run(scores, originals, labels):
    """The shares, as dictionaries, of scores that are looked up by the image's number."""
    images = [(str(i), np.array([i]), label) for i, label in enumerate(labels)]
    original = None if originals is None else lambda x: originals[int(x[0])][None]
    evaluation = evaluate(lambda x: scores[int(x[0])][None], original, images, scores.shape[1])
    compared = {name: getattr(evaluation, name) for name in ("original", "agreement", "top5_overlap", "error")}
    return msgspec.to_builtins(evaluation.branched) | msgspec.to_builtins(compared)


@given(st.integers(0, 2**32 - 1), st.integers(1, 30), st.integers(6, 12))
def test_shares_are_those_of_sorted_scores(seed, count, classes):
    rng = np.random.default_rng(seed)
    scores, originals = rng.standard_normal((2, count, classes))
    labels = rng.integers(0, classes, count)
    run_result = run(scores, originals, [int(label) for label in labels])
    assert run_result["error"] == pytest.approx(np.linalg.norm(scores - originals) / np.linalg.norm(originals))
    best, theirs = np.argsort(scores)[:, ::-1][:, :5], np.argsort(originals)[:, ::-1][:, :5]
    assert run_result["top1"]["value"] == pytest.approx(np.mean(scores.argmax(1) == labels))
    assert run_result["top5"]["value"] == pytest.approx(np.mean((best == labels[:, None]).any(1)))
    assert run_result["original"]["top1"]["value"] == pytest.approx(np.mean(originals.argmax(1) == labels))
    assert run_result["original"]["top5"]["value"] == pytest.approx(np.mean((theirs == labels[:, None]).any(1)))
    if np.bincount(originals.argmax(1)).max() >= 0.9 * count:
        assert (run_result["agreement"], run_result["top5_overlap"]) == (None, None)
        return
    assert run_result["agreement"]["value"] == pytest.approx(np.mean(scores.argmax(1) == originals.argmax(1)))
    overlap = [len(np.intersect1d(a, b)) / 5 for a, b in zip(best, theirs, strict=True)]
    assert run_result["top5_overlap"]["value"] == pytest.approx(np.mean(overlap))


def test_five_best_of_five_classes_say_nothing():
    run_result = run(np.eye(5), np.eye(5), [0, 1, 2, 3, 4])
    assert run_result["top1"]["value"] == 1.0
    assert (run_result["top5"], run_result["top5_overlap"], run_result["original"]["top5"]) == (None, None, None)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("of", ["the bundle", "the original"])
def test_output_that_is_no_number_is_refused_with_the_image(value, of):
    right, wrong = np.eye(6), np.where(np.arange(6)[:, None] == 3, value, np.eye(6))
    scores = (wrong, right) if of == "the bundle" else (right, wrong)
    with pytest.raises(StretchError, match=f"output of {of} for 3 contains NaN or infinity"):
        run(*scores, [0] * 6)


@pytest.mark.parametrize(("right", "images"), [(0, 1), (20, 20), (3, 10), (49_998, 50_000)])
def test_interval_of_whole_images_is_scipys(right, images):
    stats = pytest.importorskip("scipy.stats")
    expected = stats.binomtest(right, images).proportion_ci(method="wilson")
    share = share_of(right, images)
    assert (share.low, share.high) == pytest.approx((expected.low, expected.high), abs=1e-9)


@given(st.integers(1, 10_000).flatmap(lambda n: st.tuples(st.just(n), st.floats(0, n))))
def test_interval_holds_the_share_and_stays_a_share(counted):
    images, total = counted
    share = share_of(total, images)
    assert 0 <= share.low <= share.value == total / images <= share.high <= 1
    assert share.images == images


ARRAY = np.zeros((3, 2, 2), np.float32)


def folder(path, names):
    for name in names:
        file = path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        np.save(file, ARRAY)
    return path


def labels(result, path):
    return {file.path.relative_to(path).as_posix(): file.label for file in result.files}


def test_folders_in_the_order_of_their_names_are_the_outputs(tmp_path):
    path = folder(tmp_path, ["dog/1.npy", "cat/1.npy", "cat/deep/2.npy", "ape/1.npy"])
    images = find_images(path, 3)
    assert labels(images, path) == {"ape/1.npy": 0, "cat/1.npy": 1, "cat/deep/2.npy": 1, "dog/1.npy": 2}
    assert (images.labels, images.classes) == ("folders", {0: "ape", 1: "cat", 2: "dog"})


def test_numbers_are_outputs_whatever_their_order_as_text(tmp_path):
    path = folder(tmp_path, ["10/a.npy", "9/a.npy", "007/a.npy"])
    assert labels(find_images(path, 1000), path) == {"10/a.npy": 10, "9/a.npy": 9, "007/a.npy": 7}


def test_names_file_says_which_output_a_class_is(tmp_path):
    path = folder(tmp_path / "images", ["dog/1.npy", "ape/1.npy"])
    (tmp_path / "names.txt").write_text("cat\ndog\n\n  ape \ncow\n")
    assert labels(find_images(path, 4, tmp_path / "names.txt"), path) == {"ape/1.npy": 2, "dog/1.npy": 1}


@pytest.mark.parametrize(("name", "comma"), [("t.csv", ","), ("t.tsv", "\t"), ("T.CSV", ",")])
@pytest.mark.parametrize("heading", [True, False])
def test_table_names_files_beside_it(tmp_path, name, comma, heading):
    folder(tmp_path, ["x/a.npy", "b.npy"])
    rows = [["file", "label"]] * heading + [["x/a.npy", "1"], ["b.npy", "0"]]
    (tmp_path / name).write_text("".join(comma.join(row) + "\n" for row in rows))
    images = find_images(tmp_path / name, 2)
    assert labels(images, tmp_path) == {"x/a.npy": 1, "b.npy": 0}
    assert images.labels == "table"


def test_folder_without_folders_has_no_labels_and_neither_has_one_that_is_told_so(tmp_path):
    flat = find_images(folder(tmp_path / "flat", ["a.npy", "b.npy"]), 10)
    deep = find_images(folder(tmp_path / "deep", ["x/a.npy", "b.npy"]), 10, labelled=False)
    for value in (flat, deep):
        assert value.labels == "none"
        assert [file.label for file in value.files] == [None, None]


def test_limit_is_spread_over_the_classes(tmp_path):
    images = find_images(folder(tmp_path, [f"{c}/{i:02}.npy" for c in range(4) for i in range(25)]), 4)
    assert [file.label for file in images.spread(8)] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert images.spread(None) == images.spread(1000) == images.files


@pytest.mark.parametrize(
    ("names", "outputs", "sentence"),
    [
        ([], 3, "has no images"),
        (["a/1.npy", "b/1.npy"], 3, "has 2 classes and the network 3 outputs"),
        (["1/1.npy", "2/1.npy", "3/1.npy"], 3, "class `3` of .* is no output of the network, which are numbered 0 to 2"),
        (["a/1.npy", "b.npy"], 2, "b.npy lies in no class folder"),
    ],
)
def test_classes_that_are_not_the_networks_are_one_sentence(tmp_path, names, outputs, sentence):
    with pytest.raises(StretchError, match=sentence) as caught:
        find_images(folder(tmp_path, names), outputs)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a.npy\n", "row 1 of .* is not a file and a label"),
        ("a.npy,0\nb.npy,1,2\n", "row 2 of .* is not a file and a label"),
        ("file,label\nnowhere.npy,0\n", "row 1 of .* names .*nowhere.npy, which is no file"),
        ("", "has no images"),
        ("a.npy,\n", "is not a file and a label"),
    ],
)
def test_table_that_is_none_is_one_sentence(tmp_path, text, sentence):
    folder(tmp_path, ["a.npy", "b.npy"])
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(StretchError, match=sentence):
        find_images(tmp_path / "t.csv", 3)
