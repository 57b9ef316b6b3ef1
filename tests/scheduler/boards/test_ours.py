import subprocess
import sys
import tarfile
from io import BytesIO

import pytest

from predictors.errors import MissingBackendError
from scheduler.boards import ours
from scheduler.boards.archive import Archive
from tests.contracts.repository import ROOT, sources


@pytest.mark.slow
def test_every_source_file_of_the_packages_goes_along_and_nothing_that_was_compiled():
    files = ours.our_archive().files
    assert {str(source) for source in sources()} <= files.keys()
    assert not [name for name in files if "__pycache__" in name]
    assert "predictors/profiles/pixel6.toml" in files


def test_metadata_goes_along_without_where_it_was_installed_from():
    names = {name.rpartition("/")[2] for name in ours.our_archive().files if ".dist-info/" in name}
    assert "METADATA" in names
    assert names.isdisjoint({"direct_url.json", "RECORD", "uv_build.json"})


def test_name_follows_the_content(tmp_path, monkeypatch):
    first = ours.our_archive().name
    assert first == ours.our_archive().name
    real = ours.below

    def more(folder, skipped):
        (tmp_path / "new.py").write_text("")
        return real(folder, skipped) | {"new.py": tmp_path / "new.py"}

    monkeypatch.setattr(ours, "below", more)
    assert ours.our_archive().name != first


@pytest.mark.slow
def test_what_arrives_is_a_program_that_knows_its_version(tmp_path):
    archive = ours.our_archive()
    stream = BytesIO()
    Archive(archive.name, archive.files, compress=False).write(stream)
    with tarfile.open(fileobj=BytesIO(stream.getvalue())) as packed:
        packed.extractall(tmp_path, filter="data")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import stretch; print(stretch.__file__); from stretch.cli import app; app(['env'])"
    done = subprocess.run([sys.executable, "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(tmp_path))


def test_nn_stretch_that_was_never_installed_says_so(monkeypatch):
    monkeypatch.setattr(ours, "DISTRIBUTION", "nn-stretch-that-is-not-here")
    with pytest.raises(MissingBackendError, match="known only where it is installed"):
        ours.distribution()


def test_packages_are_those_of_the_wheel():
    import tomllib

    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert set(wheel["packages"]) == set(ours.PACKAGES)
