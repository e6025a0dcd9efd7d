"""Backups of payloads that differ and have one id."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from crc32c import crc32c

from bascule.backup.restoring import Restorer
from bascule.host.real import RealClock, RealFiles, RealRandom
from bascule.record.payload_links import Payload, PayloadLink
from bascule.storage.payloads.payload_log import PayloadLog
from bascule.storage.retention import log_config
from support.backup_sources import Backups, link_batch
from support.payload_logs import have_whole

ID = "ab" * 16
CONTENTS = [b"first", b"second", b"first"]


@pytest.fixture
def backups(tmp_path: Path) -> Backups:
    found = Backups(tmp_path)
    found.logs.add("models")
    return found


def test_each_record_is_restored_with_its_own(backups: Backups, tmp_path: Path) -> None:
    log = backups.logs.log("models")
    source = PayloadLog.open(
        RealFiles(), log.directory, log.config, RealClock(), make_lock=threading.Lock
    )
    log.close(high_watermark=0)
    for offset, content in enumerate(CONTENTS):
        payload = Payload(ID, len(content), crc32c(content))
        if not source.payloads.has(payload):
            have_whole(source.payloads, payload, content)
        source.append(link_batch(PayloadLink(offset, payload)))
    source.close(high_watermark=3)
    assert backups.take().manifest.failures() == []
    chosen = backups.repository.chosen("")
    restorer = Restorer(
        [(backups.repository.place, chosen)], RealFiles(), clock=RealClock(), dice=RealRandom()
    )
    (stream,) = restorer.streams()
    restorer.restore(str(tmp_path / "data"), [stream])
    directory = f"{tmp_path}/data/streams/models/0"
    restored = PayloadLog.open(RealFiles(), directory, log_config(stream.config), RealClock())
    for offset, content in enumerate(CONTENTS):
        found = restored.payloads.find_at(offset)
        assert found is not None
        assert Path(found.path).read_bytes() == content
    restored.close()
