"""`SimGroupDeleter`: somebody who tries to delete a group, again and again."""

from __future__ import annotations

from typing import Final

from bascule.log_connection import LogConnection
from bascule.sim.cluster.consumers.consumer import (
    MOVED,
    RETRY_SECONDS,
    CoordinatorMoved,
    SimConsumer,
)
from bascule.sim.cluster.consumers.history import ANSWERED
from bascule.sim.cluster.world.threads import sleep
from bascule.wire.error_codes import ErrorCode, code_name
from bascule.wire.messages.group.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse

PAUSE_SECONDS: Final = 1.5
REFUSED: Final = (ErrorCode.NON_EMPTY_GROUP, ErrorCode.GROUP_ID_NOT_FOUND)


class SimGroupDeleter(SimConsumer):
    """It has a machine and processes as a consumer has, and is no member."""

    def _turn(self, connection: LogConnection) -> None:
        sleep(PAUSE_SECONDS)
        deletion = self._history.on_delete_sent()
        answer: DeleteGroupsResponse = connection.request(
            DeleteGroupsRequest(groups_names=[self.plan.name])
        )
        code = answer.results[0].error_code
        if not code:
            self._note("the group is deleted")
            self._history.on_deleted(deletion)
        elif code in REFUSED:
            self._history.on_delete_refused(deletion)
        elif code in MOVED:
            raise CoordinatorMoved
        elif code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            sleep(RETRY_SECONDS)
        else:
            self.world.loop.report(ANSWERED, f"a deletion got {code_name(code)}")
