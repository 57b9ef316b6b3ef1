"""Fixtures that start the boards once for all tests of this folder."""

from tests.scheduler.tools.boards.servers import aarch64, aarch64_root, loopback, server

__all__ = ["aarch64", "aarch64_root", "loopback", "server"]
