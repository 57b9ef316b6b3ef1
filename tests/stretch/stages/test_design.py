"""A design is searched for, or read and completed for the device."""

import pytest

from predictors.errors import StretchError
from stretch.stages.design import decide_design
from tests.predictors.networks import small_resnet
from tests.predictors.specified import specified

MI9, GRAPH = specified("mi9"), small_resnet()


def test_file_that_is_no_design_is_refused(tmp_path):
    (tmp_path / "no.toml").write_text("x = [")
    with pytest.raises(StretchError, match=r"no\.toml"):
        decide_design(GRAPH, MI9, design=tmp_path / "no.toml")
