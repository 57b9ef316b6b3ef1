"""The bundle of the command line's tests."""

from tests.stretch.cli.conftest import bundle_dir, bundles  # noqa: F401
