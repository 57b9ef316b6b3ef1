import subprocess
import sys

import pytest

from tests.contracts.repository import ROOT

pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def test_module_is_the_train_verb():
    result = subprocess.run([sys.executable, "-m", "stretch.train", "--help"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "--resume" in result.stdout
    wrong = subprocess.run(
        [sys.executable, "-m", "stretch.train", "resnet56_cifar11"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert wrong.returncode == 3
    assert "resnet56_cifar10" in wrong.stderr
