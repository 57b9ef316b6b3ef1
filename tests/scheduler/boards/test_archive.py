import io
import tarfile

import pytest

from scheduler.boards.archive import Archive, below


@pytest.fixture
def files(tmp_path):
    for name, content in {"a": b"1" * 70_000, "b/c": b"", "b/__pycache__/c.pyc": b"x"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_bytes(content)
    return tmp_path


def packed(archive):
    stream = io.BytesIO()
    archive.write(stream)
    return stream.getvalue()


@pytest.mark.parametrize("compress", [True, False])
def test_archive_holds_the_files_and_nothing_of_this_machine(files, compress):
    content = packed(Archive("x", below(files), compress))
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        members = archive.getmembers()
        assert {m.name: archive.extractfile(m).read() for m in members} == {name: path.read_bytes() for name, path in below(files).items()}
        assert {(m.uid, m.gid, m.uname, m.gname, m.mtime) for m in members} == {(0, 0, "", "", 0)}


def test_same_files_give_the_same_bytes_and_compression_makes_them_fewer(files):
    assert packed(Archive("x", below(files))) == packed(Archive("x", below(files)))
    assert len(packed(Archive("x", below(files)))) < len(packed(Archive("x", below(files), compress=False)))
