import pytest

from scheduler import Session
from scheduler.service.measured import measured_network


def test_session_that_is_closed_cannot_be_measured(bundle_dir):
    from predictors.errors import StretchError

    with Session(bundle_dir) as session:
        pass
    with pytest.raises(StretchError, match="closed"):
        measured_network("n", session)
