"""Whose clock stamps files: read from the kernel's own list of mounts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from monitor.sources import mounts
from monitor.sources.mounts import keeps_local_time

LINES = """\
21 28 0:20 / /sys rw,nosuid shared:7 - sysfs sysfs rw
28 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
90 28 0:44 / /mnt/nfs\\040share rw,relatime shared:50 - nfs4 server:/export rw,vers=4.2
91 28 0:45 / /mnt/fuse rw,relatime - fuse.sshfs host:/ rw
92 28 0:46 / /run rw - tmpfs tmpfs rw
not a line at all
"""


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "mountinfo"
    file.write_text(LINES)
    monkeypatch.setattr(mounts, "MOUNTS", file)


@pytest.mark.usefixtures("listed")
@pytest.mark.parametrize(
    ("major", "minor", "local"), [(254, 0, True), (0, 46, True), (0, 44, False), (0, 45, False), (9, 9, False)]
)
def test_only_file_systems_of_this_kernel_keep_its_time(major: int, minor: int, local: bool) -> None:
    assert keeps_local_time(os.makedev(major, minor)) is local


def test_without_the_list_nothing_is_trusted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(mounts, "MOUNTS", tmp_path / "gone")
    assert not keeps_local_time(os.makedev(254, 0))
