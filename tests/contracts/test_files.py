"""What holds for every shipped file: short, and free of one machine's paths and hosts."""

import re
import subprocess

import pytest

from tests.contracts.repository import ROOT, files, sources

LIMIT = 400

#: Absolute paths that only exist on the machine somebody worked on, and hosts of package indexes.
MACHINE = re.compile(
    r"(?<![\w.~])/(?:work|home|root|Users|tmp|opt|mnt|scratch)/[\w.]+|file://|index-url\W+https?:|(?:\d{1,3}\.){3}\d{1,3}:\d+"
)

#: Files that speak of such paths because they look for them.
ALLOWED = {"tests/contracts/test_files.py"}


def tracked() -> list[str]:
    """Names of the files under version control, or of all text files where git is missing."""
    try:
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return [str(path) for path in files(".py", ".md", ".toml", ".json", ".svg", ".lock", ".yaml")]
    return [name for name in listed.decode().split("\0") if name and (ROOT / name).is_file()]


@pytest.mark.parametrize(
    "source", sources() + [path for path in files(".py") if path.parts[0] in ("tests", "experiments", "docs")], ids=str
)
def test_python_file_has_fewer_than_400_lines(source):
    assert len((ROOT / source).read_text().splitlines()) < LIMIT


def test_no_file_names_a_path_or_host_of_one_machine():
    found = []
    for name in tracked():
        if name in ALLOWED:
            continue
        try:
            text = (ROOT / name).read_text()
        except UnicodeDecodeError:
            continue
        if name.endswith(".lock"):
            text = re.sub(r"sha256:\w+", "", text)
        found += [f"{name}: {match[0]}" for match in MACHINE.finditer(text)]
    assert found == []


@pytest.mark.parametrize("name", ["base", "dev"])
def test_lock_pins_every_package_with_hashes_and_names_no_host(name):
    text = (ROOT / "requirements" / f"{name}.lock").read_text()
    blocks = re.split(r"\n(?=\S)", text.strip())
    assert len(blocks) > 10
    for block in blocks:
        assert re.match(r"[a-z0-9._-]+==\S+", block), block.splitlines()[0]
        assert "--hash=sha256:" in block, block.splitlines()[0]
    assert "://" not in text


def test_git_ignores_the_lock_file_that_would_name_hosts():
    assert "uv.lock" in (ROOT / ".gitignore").read_text().split()
