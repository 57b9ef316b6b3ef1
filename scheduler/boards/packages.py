"""Packages of others that nn-stretch needs on a board: fetched here, for the board's processor and Python, by pip or uv."""

import importlib.util
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

from packaging.markers import default_environment
from packaging.requirements import Requirement

from predictors.errors import MissingBackendError, StretchError, UnknownNameError
from scheduler.boards.archive import Archive, below, digest_of
from scheduler.boards.facts import Facts
from scheduler.boards.ours import distribution

#: Extras of ours that run something on a board, and the one that fits its profile.
EXTRAS = ("opencl", "litert", "openvino", "qnn", "fit")

#: The oldest glibc that wheels are named for by its version.
_OLDEST = 17

#: The glibc versions that uv has names for.
_OF_UV = (17, 28, *range(31, 41))


def requirements(extras: Sequence[str], facts: Facts) -> list[Requirement]:
    """What nn-stretch states that it needs on such a board."""
    for extra in extras:
        if extra not in EXTRAS:
            raise UnknownNameError.among("extra for a board", extra, EXTRAS)
    stated = [Requirement(text) for text in distribution().requires or ()]
    return [requirement for requirement in stated if _holds(requirement, facts, ("", *extras))]


def _holds(requirement: Requirement, facts: Facts, extras: Sequence[str]) -> bool:
    marker = requirement.marker
    there = {"platform_machine": facts.arch, "python_full_version": facts.python, "platform_system": "Linux", "sys_platform": "linux"}
    here: Mapping[str, object] = default_environment()
    return marker is None or any(marker.evaluate({**here, **there, "extra": extra}) for extra in extras)  # type: ignore[dict-item]


def pins(stated: Sequence[Requirement], facts: Facts) -> list[str]:
    """The versions that are installed here of what is needed there, and of what that needs in turn.

    What is not installed here is not pinned.
    """
    versions: dict[str, str] = {}
    left = list(stated)
    while left:
        wanted = left.pop()
        try:
            about = metadata.distribution(wanted.name)
        except metadata.PackageNotFoundError:
            continue
        if about.metadata["Name"] not in versions:
            versions[about.metadata["Name"]] = about.version
            inner = (Requirement(text) for text in about.requires or ())
            left += [requirement for requirement in inner if _holds(requirement, facts, ("", *wanted.extras))]
    return sorted(f"{name}=={version}" for name, version in versions.items())


@contextmanager
def package_archive(host: str, facts: Facts, stated: Sequence[Requirement], name: str, wheels: Path | None) -> Iterator[Archive]:
    """The packages as a folder that Python imports from, for as long as the block lasts."""
    with tempfile.TemporaryDirectory(prefix="nn-stretch-") as folder:
        target, limits = Path(folder, "packages"), Path(folder, "pins.txt")
        # a folder of wheels decides itself which versions there are
        limits.write_text("".join(f"{pin}\n" for pin in ([] if wheels else pins(stated, facts))))
        command = [*installer(facts), "--target", str(target), "--constraint", str(limits)]
        command += ["--no-index", "--find-links", str(wheels)] if wheels else []
        wanted = [
            f"{requirement.name}{'[' + ','.join(sorted(requirement.extras)) + ']' if requirement.extras else ''}{requirement.specifier}"
            for requirement in stated
        ]
        done = subprocess.run([*command, *wanted], stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode:
            raise MissingBackendError(f"the packages for {host} ({facts}) cannot be had: {_reason(done.stderr)}", _mend(wheels))
        yield Archive(name, below(target, ("__pycache__", "bin")))


def package_name(stated: Sequence[Requirement], facts: Facts, wheels: Path | None) -> str:
    """Name of the folder on the board that holds these packages, from all that decides which they are."""
    if wheels is None:
        chosen = pins(stated, facts)
    else:
        files = sorted(wheels.glob("*.whl")) if wheels.is_dir() else []
        if not files:
            raise StretchError(f"{wheels} is no folder with wheels", "name one that holds .whl files, for the board's processor and Python")
        chosen = [f"{wheel.name}:{wheel.stat().st_size}" for wheel in files]
    return f"packages/{digest_of([facts.arch, facts.series, *sorted(map(str, stated)), *chosen])}"


def installer(facts: Facts) -> list[str]:
    """Words that start pip, or uv where there is no pip, to fetch wheels alone, for such a board."""
    minor = int(facts.glibc.split(".")[1]) if facts.glibc.startswith("2.") else _OLDEST
    if importlib.util.find_spec("pip") is not None:
        tags = [f"manylinux_2_{n}_{facts.arch}" for n in range(minor, _OLDEST - 1, -1)] + [f"manylinux2014_{facts.arch}"]
        platforms = [word for tag in tags for word in ("--platform", tag)]
        quiet = ["--quiet", "--disable-pip-version-check", "--no-input", "--no-compile"]
        chosen = ["--only-binary", ":all:", "--implementation", "cp", "--python-version", facts.series]
        return [sys.executable, "-m", "pip", "install", *quiet, *chosen, *platforms]
    beside = Path(sys.executable).with_name("uv")
    uv = str(beside) if beside.is_file() else shutil.which("uv")
    if uv is None:
        raise MissingBackendError(
            "packages for a board are fetched by pip or uv, and neither is here", "install one, as `python -m ensurepip`"
        )
    platform = f"{facts.arch}-manylinux_2_{max((n for n in _OF_UV if n <= minor), default=_OLDEST)}"
    return [uv, "pip", "install", "--quiet", "--only-binary", ":all:", "--python-version", facts.series, "--python-platform", platform]


def _mend(wheels: Path | None) -> str:
    if wheels is not None:
        return f"put the missing wheels into {wheels}"
    return "see that the package index can be reached from here, or name a folder with the board's wheels by --wheels"


def _reason(log: str) -> str:
    """The line in which pip or uv says what is missing."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    wrong = [line for line in lines if line.startswith("ERROR:")] or lines
    return wrong[-1].removeprefix("ERROR: ")[:300] if wrong else "nothing was said"
