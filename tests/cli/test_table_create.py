"""What `bascule table create` refuses before it asks a node."""

from __future__ import annotations

import asyncio

import pytest

from bascule.cli import exit_codes
from bascule.cli.main import main
from bascule.client.admin.api import Admin
from bascule.client.admin.settings import StreamSettings
from bascule.errors import ConfigError


def test_a_table_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["table", "create", "t", "--no-table"]) == exit_codes.USAGE
    assert "no such option: --no-table" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"cleanup": ("delete",)}, "cleanup is delete: a table is compacted by key"),
        ({"table": False}, "table is false: create a stream instead"),
    ],
)
def test_what_would_be_no_table(settings: StreamSettings, says: str) -> None:
    """No node is asked."""

    async def create() -> None:
        admin = Admin("http://127.0.0.1:1", timeout=1)
        try:
            await admin.create_table("t", **settings)
        finally:
            await admin.close()

    with pytest.raises(ConfigError, match=says):
        asyncio.run(create())
