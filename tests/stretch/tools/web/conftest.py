from tests.scheduler.conftest import bundle_dir, bundles

__all__ = ["bundle_dir", "bundles"]
