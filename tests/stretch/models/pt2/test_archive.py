import zipfile

import pytest

from predictors.errors import StretchError
from stretch.models.pt2.archive import Archive
from tests.stretch.models.pt2.archives import Small, save

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return save(tmp_path_factory.mktemp("pt2") / "m.pt2", Small().eval())


def written(path, **options):
    """An archive of one record beside those that mark it."""
    with zipfile.ZipFile(path, "w", **options) as made:
        for name, content in (("archive_format", "pt2"), ("archive_version", "0"), ("a", "x" * 1000)):
            made.writestr(f"m/{name}", content)
    return path


def test_records_are_read_by_their_names(saved):
    archive = Archive(saved)
    assert {"models/model.json", "data/weights/weight_0"} <= set(archive.names)
    assert len(archive.read("data/weights/weight_0")) == 4 * 3 * 9 * 4
    with pytest.raises(StretchError, match=r"m\.pt2 has no record `absent`"):
        archive.read("absent")


@pytest.mark.parametrize("content", [b"", b"text", b"PK\x05\x06" + bytes(18), b"PK\x03\x04" + bytes(60)])
def test_file_that_is_no_archive_is_refused(tmp_path, content):
    (tmp_path / "m.pt2").write_bytes(content)
    with pytest.raises(StretchError, match=r"is no archive of torch\.export"):
        Archive(tmp_path / "m.pt2")


def test_missing_file_is_named(tmp_path):
    with pytest.raises(StretchError, match="cannot read"):
        Archive(tmp_path / "m.pt2")


def test_plain_zip_file_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "m.pt2", "w") as made:
        made.writestr("m/a", "b")
    with pytest.raises(StretchError, match=r"is no archive of torch\.export"):
        Archive(tmp_path / "m.pt2")


def test_compressed_records_are_refused_before_they_grow(tmp_path):
    path = written(tmp_path / "m.pt2", compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(StretchError, match=r"its records are larger than the file|is compressed or encrypted"):
        Archive(path)


def test_record_that_is_there_twice_is_refused(tmp_path):
    path = written(tmp_path / "m.pt2")
    with zipfile.ZipFile(path, "a") as made:
        made.writestr("other/a", "y")
    with pytest.raises(StretchError, match="it has two records `a`"):
        Archive(path)


def test_record_with_changed_bytes_is_refused(tmp_path):
    path = written(tmp_path / "m.pt2")
    content = path.read_bytes()
    path.write_bytes(content.replace(b"xxx", b"xyx", 1))
    with pytest.raises(StretchError, match=r"record `a` of .*m\.pt2 is damaged"):
        Archive(path).read("a")
