"""Build the files of a release and try them in clean environments: `make release`, or `python -m tools.release --help`.

A wheel and an sdist are built into `dist` and checked. Every Python from 3.11
to 3.14 found here gets one new environment for each file, with the base
install: the program lists devices, verifies a small bundle and runs it, also on
the boards that are named. Then the wheel's extras are added, to draw a plot and
to branch a network. The base install and these extras are also resolved for
other systems, from wheels alone. A table has the result of each step; the exit
code is 1 if anything failed.
"""

import argparse
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from tools.wheels import SYSTEMS, environment, missing

ROOT = Path(__file__).resolve().parents[1]

#: Python series that are tried.
SERIES = ("3.11", "3.12", "3.13", "3.14")

#: Maximum size in bytes of the base install, without pip's bytecode; torch alone is larger.
MAX_INSTALL_BYTES = 200 * 10**6

#: Paths of one machine, and hosts of package indexes.
MACHINE = re.compile(r"(?<![\w.~])/(?:work|home|root|Users|mnt|scratch)/[\w.]+|index-url\W+https?:|(?:\d{1,3}\.){3}\d{1,3}:\d+")

#: Files that every wheel must contain.
NEEDED = ("stretch/cli/__init__.py", "scheduler/tools/boards/agent.py", "predictors/profiles/pixel6.toml", "stretch/_recipes/designs/")

#: Command that branches a small network with this checkout.
BRANCH = ("branch", "tiny_resnet", "--device", "pixel6", "--weights", "none", "--alpha", "100", "--quiet")

#: Extras that are tried in addition to the base install.
EXTRAS = ("plot", "torch")


class FailedError(Exception):
    """A failed step, with a sentence for the user."""


def main(words: Sequence[str] | None = None) -> int:
    """Try everything and print the table; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", action="append", metavar="PATH", help="a Python to try; repeat; all that are found if left out")
    parser.add_argument("--on", action="append", default=[], metavar="HOST", help="a board to try the installed program on; repeat")
    parser.add_argument("--ssh-config", metavar="FILE", help="ssh configuration for --on")
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", metavar="FOLDER", help="where the wheel and the sdist go")
    args = parser.parse_args(words)
    # uv does not read pip's settings
    os.environ |= environment()
    config = [f"--ssh-config={Path(args.ssh_config).resolve()}"] if args.ssh_config else []
    with tempfile.TemporaryDirectory(prefix="nn-stretch-release-") as folder:
        wheel, sdist = build(args.dist)
        rows = {"the files": inspect_packages(wheel, sdist, (ROOT / "CHANGELOG.md").read_text())}
        resolved = {system: functools.partial(resolve, system) for system in SYSTEMS}
        rows["wheels of the base install, plot and torch"] = steps(resolved)
        bundle = Path(folder, "bundle")
        # with the code of this checkout, from which the files are built
        run([sys.executable, "-c", "from stretch.cli import app; app()", *BRANCH, "--out", bundle], ROOT)
        for python in args.python or find_pythons():
            for file in (wheel, sdist):
                print(f"trying {file.name} with {python}", file=sys.stderr)
                place = Path(folder, f"environment-{len(rows)}")
                hosts = {host: [f"--on={host}", *config] for host in (args.on if file is wheel else ())}
                rows[f"{version(python)}, {'wheel' if file is wheel else 'sdist'}"] = try_install(
                    python, file, bundle, place, hosts, EXTRAS if file is wheel else ()
                )
                shutil.rmtree(place)
    print(table(rows))
    return 1 if any(value.startswith("failed") for row in rows.values() for value in row.values()) else 0


def build(dist: Path) -> tuple[Path, Path]:
    """Build the wheel and the sdist as the only ones in a folder."""
    for old in dist.glob("nn_stretch-*"):
        old.unlink()
    run([sys.executable, "-m", "hatchling", "build", "-d", dist], ROOT)
    (wheel,), (sdist,) = dist.glob("nn_stretch-*.whl"), dist.glob("nn_stretch-*.tar.gz")
    return wheel, sdist


def inspect_packages(wheel: Path, sdist: Path, changelog: str) -> dict[str, str]:
    """Check the contents of the wheel and the sdist."""
    with zipfile.ZipFile(wheel) as packed:
        inside = {name: packed.read(name) for name in packed.namelist()}
    with tarfile.open(sdist) as archive:
        source = {member.name.partition("/")[2]: archive.extractfile(member).read() for member in archive if member.isfile()}
    stated = tomllib.loads(source["pyproject.toml"].decode())["project"]["version"]
    return steps(
        {
            "complete": lambda: check_complete(inside, source),
            "version": lambda: check_version(stated, wheel.name, inside, changelog),
            "no machine's names": lambda: check_names({**inside, **source}),
        }
    )


def check_complete(inside: Mapping[str, bytes], source: Mapping[str, bytes]) -> str:
    """Refuse a wheel without a file of the sdist or a required one."""
    missing = [name for name in NEEDED if not any(item.startswith(name) for item in inside)]
    missing += [name for name in source if name.split("/")[0] in ("stretch", "scheduler", "predictors") and name not in inside]
    if missing:
        raise FailedError(f"the wheel lacks {', '.join(missing[:3])}")
    return f"{len(inside)} files"


def check_version(stated: str, name: str, files: Mapping[str, bytes], changes: str) -> str:
    """Refuse a version that differs between places, or whose changes are not listed under its name."""
    if f"nn_stretch-{stated}-" not in name or f'__version__ = "{stated}"' not in files["stretch/__init__.py"].decode():
        raise FailedError(f"pyproject.toml says {stated}, and {name} or stretch.__version__ something else")
    newest = re.search(r"^## (.+)$", changes, re.MULTILINE)
    if newest is None or not (when := re.fullmatch(rf"{re.escape(stated)} \((\d{{4}}-\d\d-\d\d|unreleased)\)", newest[1])):
        raise FailedError(f"CHANGELOG.md begins with `{newest[1] if newest else 'nothing'}`, not with {stated} and its date")
    return f"{stated}, {when[1]}" + ("; CHANGELOG.md needs a date before publication" if when[1] == "unreleased" else "")


def resolve(system: str) -> str:
    """Refuse a system for which an install of the base or an extra finds no wheel."""
    lacking = [f"{extra or 'base'}: {', '.join(packages)}" for extra in (None, *EXTRAS) if (packages := missing(system, extra))]
    if lacking:
        raise FailedError("; ".join(lacking))
    return "yes"


def check_names(files: Mapping[str, bytes]) -> str:
    """Refuse files that name a path or a host of one machine."""
    for name, content in files.items():
        try:
            search_result = MACHINE.search(content.decode())
        except UnicodeDecodeError:
            continue
        if search_result:
            raise FailedError(f"{name} names {search_result[0]}")
    return "none"


def find_pythons() -> list[str]:
    """Return the working Pythons of each series: one on the PATH, else one of pyenv or uv."""
    pythons = []
    for series in SERIES:
        kept = [
            *Path.home().glob(f".pyenv/versions/{series}.*/bin/python3"),
            *Path.home().glob(f".local/share/uv/python/cpython-{series}*/bin/python3"),
        ]
        candidates = [shutil.which(f"python{series}"), *map(str, sorted(kept))]
        pythons += [candidate for candidate in candidates if candidate and version(candidate).startswith(f"{series}.")][:1]
    return pythons


def version(python: str) -> str:
    """Return the version of a Python; empty if it does not run."""
    try:
        return run([python, "-c", "import platform; print(platform.python_version())"], Path.cwd()).strip()
    except FailedError:
        return ""


def try_install(
    python: str, file: Path, bundle: Path, place: Path, hosts: Mapping[str, Sequence[str]], extras: Sequence[str] = ()
) -> dict[str, str]:
    """Install a file into a new environment, use it there and on boards, then add extras."""
    folder = place / "bin"
    stretch = program(folder)
    plain = ("run", bundle, "--repeat", "2", "--warmup", "0", "--json", "--quiet")

    def answer(*words: object) -> object:
        return json.loads(run([stretch, *words], place))

    def install() -> str:
        run([python, "-m", "venv", place], place.parent)
        run([folder / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", file], place)
        (site,) = place.glob("lib/python*/site-packages")
        ours = [path for path in site.iterdir() if path.name.split("-")[0] not in ("pip", "setuptools")]
        files = [item for path in ours for item in ([path] if path.is_file() else path.rglob("*")) if item.is_file()]
        size, bytecode = (sum(file.stat().st_size for file in files if ("__pycache__" in file.parts) == value) for value in (False, True))
        if size > MAX_INSTALL_BYTES or (site / "torch").exists():
            raise FailedError(f"the base install takes {size / 1e6:.0f} MB{', and torch is in it' if (site / 'torch').exists() else ''}")
        return f"{size / 1e6:.0f} MB, and {bytecode / 1e6:.0f} MB of bytecode"

    def board(words: Sequence[str]) -> str:
        try:
            return answer(*plain, *words)["on"]["arch"]
        except FailedError as error:
            if "of the same series" in str(error):
                return "not tried: its Python is of another series"
            raise

    def extra(name: str) -> str:
        run([sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", folder / "python", f"{file}[{name}]"], place)
        if name == "plot":
            run(
                [stretch, "predict", bundle / "model.onnx", "--device", "pixel6", "--processor", "cpu", "--plot", "kernels.svg", "--quiet"],
                place,
            )
            return "drew the kernels of model.onnx"
        run([stretch, *BRANCH, "--out", "branched"], place)
        return "branched tiny_resnet"

    return steps(
        {
            "install": install,
            "version": lambda: run([stretch, "--version"], place).strip(),
            "env": lambda: f"{len(answer('list', 'env', '--json')['items'])} facts",
            "devices": lambda: f"{len(answer('list', 'devices', '--json')['items'])}",
            "verify": lambda: "ok" if answer("verify", bundle, "--json")["ok"] else "failed",
            "run": lambda: f"error {answer(*plain)['max_error']:.0e}",
            **{f"run on {host}": functools.partial(board, words) for host, words in hosts.items()},
            **{f"with {name}": functools.partial(extra, name) for name in extras},
        }
    )


def steps(functions: Mapping[str, Callable[[], str]]) -> dict[str, str]:
    """Run all steps, also after a failure, and return their results."""
    done = {}
    for name, step in functions.items():
        try:
            done[name] = step()
        except (FailedError, ValueError, KeyError) as error:
            done[name] = f"failed: {error}"
    return done


def program(folder: Path) -> Path:
    """Return the path of an environment's command line."""
    return folder / "stretch"


def run(words: Sequence[object], folder: Path) -> str:
    """Run a program in a folder without variables of this environment, and return its output."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
    try:
        done = subprocess.run(list(map(str, words)), cwd=folder, env=kept, capture_output=True, text=True, check=False)
    except OSError as error:
        raise FailedError(f"{words[0]}: {error.strerror}") from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        search_result = re.search(r'"error": "(.*)"', done.stdout)
        why = search_result[1] if search_result else lines[-1] if lines else f"exit code {done.returncode}"
        raise FailedError(f"{Path(str(words[0])).name} {words[1]}: {why[:300]}")
    return done.stdout


def table(rows: Mapping[str, Mapping[str, str]]) -> str:
    """Return a text with one line per step of each row."""

    def lines() -> Iterator[str]:
        for name, row in rows.items():
            yield name
            width = max(map(len, row))
            yield from (f"  {step:<{width}}  {value}" for step, value in row.items())

    return "\n".join(lines())


if __name__ == "__main__":
    sys.exit(main())
