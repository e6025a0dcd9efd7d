"""A node with a small file system of its own, for tests of full disks."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from support.processes import Node

SIZE = "24m"


def can_mount() -> bool:
    """Whether an unprivileged namespace with a file system of its own can be made here."""
    if shutil.which("unshare") is None:
        return False
    script = f"mount -t tmpfs -o size={SIZE} none /mnt"
    tried = subprocess.run(["unshare", "-rm", "sh", "-c", script], capture_output=True, check=False)
    return tried.returncode == 0


class SmallDisk(Node):
    """A node whose data directory is a tmpfs of its own, seen from here through /proc."""

    def command(self, ready: Path) -> list[str]:
        data = self.directory / "data"
        data.mkdir(exist_ok=True)
        mount = f"mount -t tmpfs -o size={SIZE} none '{data}'"
        return [
            "unshare",
            "-rm",
            "sh",
            "-c",
            f'{mount} && exec "$@"',
            "sh",
            *super().command(ready),
        ]

    @property
    def data(self) -> Path:
        return Path(f"/proc/{self.addresses['pid']}/root{self.directory}/data")

    def fill(self) -> Path:
        """Leave not one byte free."""
        ballast = self.data / "ballast"
        with ballast.open("wb", buffering=0) as file:
            for size in (1 << 16, 1 << 12, 1):
                try:
                    while True:
                        file.write(b"\1" * size)
                except OSError:
                    continue
        return ballast

    def fill_to(self, free_bytes: int) -> None:
        """Leave so many bytes free."""
        with (self.data / "more_ballast").open("ab", buffering=0) as file:
            while (room := shutil.disk_usage(self.data).free - free_bytes) > 0:
                file.write(b"\1" * min(room, 1 << 16))


class DiskFullBefore(SmallDisk):
    """A node that starts on a disk without a free byte, with a copy of the data in `kept`."""

    kept: Path

    def command(self, ready: Path) -> list[str]:
        command, data = super().command(ready), self.directory / "data"
        script = command.index("-c") + 1
        fill = f"dd if=/dev/zero of='{data}/ballast' bs=4k 2>'{self.directory}/dd'"
        command[script] = command[script].replace(
            "&& exec", f"&& cp -a '{self.kept}/.' '{data}' && ! {fill} && exec"
        )
        return command
