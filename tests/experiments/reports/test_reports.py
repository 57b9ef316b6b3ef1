"""Screenshots of the documentation show the reports that the program writes."""

import pytest
from PIL import Image

from experiments.reports.run import PICTURES, REPORTS, report, shown


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize("name", REPORTS)
def test_screenshot_shows_the_words_of_todays_report(tmp_path, name):
    # the page states the command, and with it the file's name
    path = tmp_path / f"{name}.html"
    report(REPORTS[name], path)
    with Image.open(PICTURES / f"{name}.png") as picture:
        assert picture.info.get("report") == shown(path), "draw it with python -m experiments.reports.run"
