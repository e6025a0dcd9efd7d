"""A simulated disk whose process is killed at a file operation."""

from __future__ import annotations

from bascule.sim.disk import SimFiles


class Killed(BaseException):
    """The process ends at a file operation; what it has written is in the page cache."""


class FilesOfKilled(SimFiles):
    """The process that uses them is killed before operation `left` from now; -1: it is not."""

    left = -1

    def begin(self, what: str, path: str, rest: str = "", *fields: object) -> None:
        if self.left == 0:
            raise Killed
        self.left -= 1
        super().begin(what, path, rest, *fields)
