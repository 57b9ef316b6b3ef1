"""Which installs have wheels on which systems, as the package index answers now: `.venv/bin/python -m tools.wheels`.

It resolves the base install and each extra without building anything, and writes the answer to `requirements/wheels.json`.
Nothing is installed: that a wheel exists does not say that it works.
"""

import os
import re
import subprocess
import sys
import tomllib
from datetime import UTC, datetime
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "requirements" / "wheels.json"
#: Names of systems in uv, by their names in this project.
SYSTEMS = {
    "Linux x86-64, glibc 2.28": "x86_64-unknown-linux-gnu",
    "Linux aarch64, glibc 2.28": "aarch64-unknown-linux-gnu",
    "Windows x86-64": "x86_64-pc-windows-msvc",
    "macOS arm64": "aarch64-apple-darwin",
}
#: Extras for developers, or for Linux only.
EXCLUDED = ("dev", "site", "qnn")


def environment() -> dict[str, str]:
    """Return this process's environment, with the index and the certificate from pip's settings, which uv does not read."""
    words = [sys.executable, "-m", "pip", "config", "list"]
    lines = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    settings = {key.rpartition(".")[2]: value.strip("'") for key, _, value in (line.partition("=") for line in lines)}
    given = {"SSL_CERT_FILE": settings.get("cert"), "UV_DEFAULT_INDEX": settings.get("index-url")}
    return {**{name: value for name, value in given.items() if value}, **os.environ}


#: Pattern of uv's message about packages without a wheel for a system.
_LACKING = re.compile(r"([\w-]+)(?:\{[^}]*\})?(?:[<>=]\S*)? (?:has|have) no wheels with a matching platform tag")


def missing(system: str, extra: str | None) -> list[str]:
    """Return the packages for which an install finds no wheel; empty if wheels resolve it."""
    words = [sys.executable, "-m", "uv", "pip", "compile", "pyproject.toml", "--quiet", "--python-version", "3.11"]
    words += ["--python-platform", SYSTEMS[system], "--only-binary", ":all:", *(["--extra", extra] if extra else [])]
    done = subprocess.run(words, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    reason = " ".join(done.stderr.split())
    return (sorted(set(_LACKING.findall(reason))) or [reason]) if done.returncode else []


def main() -> int:
    """Write the record; return 1 if the base install lacks a wheel."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [None, *(name for name in project["optional-dependencies"] if name not in EXCLUDED)]
    answers = {extra or "base": {system: missing(system, extra) for system in SYSTEMS} for extra in extras}
    record = {"source": "measured", "date": f"{datetime.now(UTC):%Y-%m-%d}", "python": "3.11", "missing": answers}
    RECORD.write_bytes(msgspec.json.format(msgspec.json.encode(record)) + b"\n")
    for name, by_system in answers.items():
        print(f"{name:10}", *(f"{system}: {', '.join(why) or 'yes'}" for system, why in by_system.items()), sep="  ")
    return int(any(answers["base"].values()))


if __name__ == "__main__":
    sys.exit(main())
