import numpy as np
import pytest

from predictors.errors import StretchError
from stretch.evaluation.measure import find_images

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
