"""Tools for tests as a new user: a folder with the user's files, and the installed commands."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

BIN, ROOT = Path(sys.executable).parent, Path(__file__).parents[2]

MODEL = '''
"""My network."""
from torch import nn


def conv(before, after, size, stride):
    return nn.Conv2d(before, after, size, stride, size // 2, bias=False), nn.BatchNorm2d(after)


class Block(nn.Module):
    def __init__(self, before, after, stride):
        super().__init__()
        self.body = nn.Sequential(*conv(before, after, 3, stride), nn.ReLU(), *conv(after, after, 3, 1))
        self.skip = nn.Sequential(*conv(before, after, 1, stride)) if stride > 1 else nn.Identity()

    def forward(self, x):
        return (self.body(x) + self.skip(x)).relu()


class Net(nn.Module):
    def __init__(self, classes=5):
        super().__init__()
        self.stem = nn.Sequential(*conv(3, 32, 3, 2), nn.ReLU())
        self.stages = nn.Sequential(*(Block(*sizes) for sizes in ((32, 32, 1), (32, 32, 1), (32, 64, 2), (64, 64, 1), (64, 128, 2), (128, 128, 1))))
        self.head = nn.Linear(128, classes)

    def forward(self, x):
        return self.head(self.stages(self.stem(x)).mean((2, 3)))


def make():
    net = Net()
    # how I read pictures
    net.preprocessing = {"mean": [0.5, 0.5, 0.5], "std": [0.25, 0.25, 0.25], "crop": 1.0, "interpolation": "bicubic"}
    return net
'''


#: A recipe for the network above, which has five classes, and pictures of three classes.
RECIPE = """
model = "mymodel.py:make"
device = "pixel6"
classes = 3

[data]
name = "images"
path = "pictures"
size = 32

[plan]
alpha = 100.0

[train]
epochs = 4
batch = 8
learning_rate = 0.05
"""


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.out)

    def command(self, phrase: str) -> list[str]:
        """Return the arguments of the `stretch` command that follows a phrase in the output."""
        [line] = [line for line in (self.out + self.err).splitlines() if phrase in line]
        arguments = line.partition(phrase)[2].split()
        assert arguments[0] == "stretch"
        return arguments[1:]


@dataclass(frozen=True)
class User:
    """A user with a separate folder and an installed `stretch`.

    Args:
        home: The user's folder.
        program: The installed command.
    """

    home: Path
    program: Path = BIN / "stretch"

    @property
    def environment(self) -> dict[str, str]:
        """Environment of the commands, without this checkout and without settings of other tests."""
        current = {key: value for key, value in os.environ.items() if key != "PYTHONPATH" and not key.startswith(("NN_STRETCH", "PYTEST"))}
        return {**current, "XDG_CACHE_HOME": str(self.home / ".cache"), "OMP_NUM_THREADS": "1"}

    def stretch(self, *arguments: object, code: int = 0) -> Done:
        command = [str(self.program), *map(str, arguments)]
        process = subprocess.run(command, cwd=self.home, env=self.environment, capture_output=True, text=True, check=False)
        result = Done(process.returncode, process.stdout, process.stderr)
        assert result.code == code, (arguments, result)
        assert "Traceback" not in result.err
        return result

    def ask(self, *arguments: object, code: int = 0) -> dict[str, Any]:
        return self.stretch(*arguments, "--json", "--quiet", code=code).json


def uv(*arguments: object, cwd: Path) -> None:
    """Run uv offline with the versions of the lock; skip the test if a package is not in uv's cache."""
    environment = os.environ | {"UV_CONSTRAINT": str(ROOT / "requirements" / "dev.lock")}
    command = [str(BIN / "uv"), *map(str, arguments)]
    process = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    errors = process.stderr.lower()
    if process.returncode and ("network was disabled" in errors or "network connectivity is disabled" in errors):
        pytest.skip("uv has not all packages in its cache, and fetches none here")
    assert process.returncode == 0, process.stderr


def new_user(home: Path) -> User:
    """Make a user with a model, a recipe, and pictures of three classes for training and validation."""
    image = pytest.importorskip("PIL.Image")
    (home / "mymodel.py").write_text(MODEL)
    (home / "mine.toml").write_text(RECIPE)
    (home / "classes.txt").write_text("apes\nfoxes\nfrogs\nowls\nwhales\n")
    random = np.random.default_rng(0)
    for name, colour in {"foxes": (190, 90, 50), "frogs": (70, 180, 80), "whales": (60, 80, 180)}.items():
        for split, count in (("train", 16), ("val", 8)):
            folder = home / "pictures" / split / name
            folder.mkdir(parents=True)
            for i in range(count):
                pixels = np.clip(colour + random.normal(0, 40, (72, 96, 3)), 0, 255).astype(np.uint8)
                image.fromarray(pixels).save(folder / f"{i}.{'png' if i % 2 else 'jpg'}")
    return User(home)
