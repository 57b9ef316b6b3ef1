"""Boards are started once for all tests of this folder."""

from tests.scheduler.boards.servers import loopback, server

__all__ = ["loopback", "server"]
