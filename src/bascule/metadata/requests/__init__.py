"""Requests to the controller as values, and the decision on each. Pure.

kinds    the requests
decide   commands that fulfil a request, or an error
"""

from bascule.metadata.requests.decide import decide, settle
from bascule.metadata.requests.kinds import (
    AcknowledgeLoss,
    Admit,
    Alter,
    BalanceLeaders,
    ChangeIsrs,
    ControllerRequest,
    Create,
    Delete,
    ElectUncleanly,
    FinishLeaving,
    Forget,
    IsrChange,
    Leave,
    LookUp,
    LoseNode,
    MoveReplicas,
    NodeRequest,
    PartitionRequest,
    Reassign,
    RegisterProcess,
    ReplaceLeader,
    Resign,
    SetPaused,
    Stay,
    StepDown,
)

__all__ = [
    "AcknowledgeLoss",
    "Admit",
    "Alter",
    "BalanceLeaders",
    "ChangeIsrs",
    "ControllerRequest",
    "Create",
    "Delete",
    "ElectUncleanly",
    "FinishLeaving",
    "Forget",
    "IsrChange",
    "Leave",
    "LookUp",
    "LoseNode",
    "MoveReplicas",
    "NodeRequest",
    "PartitionRequest",
    "Reassign",
    "RegisterProcess",
    "ReplaceLeader",
    "Resign",
    "SetPaused",
    "Stay",
    "StepDown",
    "decide",
    "settle",
]
