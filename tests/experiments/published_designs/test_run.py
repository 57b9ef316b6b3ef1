"""The command takes any file of designs, and tells what is wrong with one in a sentence."""

import pytest

pytest.importorskip("torch")

from experiments.published_designs.run import main

FILE = "design,model,ms,cpu depths,cpu widths,cpu ms,dsp depths,dsp widths,dsp ms\nd,ResNet-34,18,3 4 6 3,48 88 176 352,24,2 3 4 2,40 80 160 320,27\n"


def test_file_that_is_none_is_one_sentence(tmp_path, capsys):
    path = tmp_path / "theirs.csv"
    path.write_text(FILE.replace("3 4 6 3", "many"))
    assert main([str(path)]) == 1
    assert capsys.readouterr().err.startswith("error: line 2 of ")
