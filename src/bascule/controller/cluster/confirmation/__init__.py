"""What a leader may say only while there is no next one.

leader_confirmation  how it knows that it still leads, by asking the controller
refusals             answers who was refused, once it knows
"""

from __future__ import annotations

from bascule.controller.cluster.confirmation.leader_confirmation import CONFIRM, LeaderConfirmation
from bascule.controller.cluster.confirmation.refusals import Refusals

__all__ = ["CONFIRM", "LeaderConfirmation", "Refusals"]
