"""A data directory belongs to a cluster of one name."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bascule.errors import ConfigError
from bascule.host.real import RealFiles, RealRandom
from bascule.node.cluster_file import KeptCluster


def kept(path: Path) -> KeptCluster:
    found = KeptCluster(RealFiles(), str(path), RealRandom())
    asyncio.run(found.load())
    return found


def test_another_name_than_the_kept_one_is_refused(tmp_path: Path) -> None:
    kept(tmp_path).check_name("any")
    asyncio.run(kept(tmp_path).keep(has_formed=True))
    kept(tmp_path).check_name("any")
    asyncio.run(kept(tmp_path).keep(name="flights"))
    kept(tmp_path).check_name("flights")
    with pytest.raises(ConfigError, match=r"is 'other', and .*cluster 'flights': start it with"):
        kept(tmp_path).check_name("other")
