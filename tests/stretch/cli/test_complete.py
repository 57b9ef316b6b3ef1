"""Completion as a shell asks for it: a real bash with the script that the command line prints."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from predictors.devices import list_devices
from stretch.cli import VERBS

BIN = Path(sys.executable).parent


def bash(script, home):
    """What a bash without anybody's settings prints."""
    env = {**os.environ, "HOME": str(home), "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["bash", "--noprofile", "--norc", "-c", script], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def completed(home, *words):
    """What the last of the words may become."""
    quoted = " ".join(f"'{word}'" for word in words)
    return bash(
        'script="$(stretch --show-completion)"; eval "$script"; '
        f"COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _stretch_completion stretch; "
        'printf "%s\\n" "${COMPREPLY[@]}"',
        home,
    )


@pytest.mark.representatives(6)
@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("stretch", ""), set(VERBS)),
        (("stretch", "branch", "--dev"), {"--device"}),
        (("stretch", "branch", "tiny_resnet", "--device", ""), set(list_devices())),
        (("stretch", "branch", "tiny_resnet", "--merge", "a"), {"auto", "always"}),
        (("stretch", "branch", "tiny_resnet", "--cuts", ""), {"blocks", "stages"}),
        (("stretch", "explain", "bundle", "-d", "pix"), {"pixel4", "pixel6"}),
        (("stretch", "branch", "tiny_re"), {"tiny_regnet", "tiny_resnet"}),
        (("stretch", "train", "resnet56_cifar10_s"), {"resnet56_cifar10_supernet"}),
        (("stretch", "branch", "./mine.py"), {""}),
    ],
    ids=lambda value: " ".join(value if isinstance(value, tuple) else sorted(value)),
)
def test_bash_completes_verbs_flags_devices_and_models(tmp_path, words, found):
    assert set(completed(tmp_path, *words)) == found


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["fish"])
def test_models_are_completed_without_importing_torch(tmp_path, shell):
    code = "import sys; sys.modules['torch'] = None; sys.argv[0] = 'stretch'\nfrom stretch.cli import app\napp()"
    env = {
        **os.environ,
        "_STRETCH_COMPLETE": f"complete_{shell}",
        "_TYPER_COMPLETE_ARGS": "stretch branch resnet50",
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        "COMP_WORDS": "stretch branch resnet50",
        "COMP_CWORD": "2",
    }
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert "resnet50" in done.stdout
    assert done.stderr == ""
