"""Requests of tools about groups: ListGroups, DescribeGroups, DeleteGroups and OffsetDelete.

The coordinator answers. A client asks every node for its groups; one that coordinates none has an
empty list.
"""

from __future__ import annotations

from bascule.kafka.handlers.group_administration.delete_groups import handle_delete_groups
from bascule.kafka.handlers.group_administration.describe_groups import handle_describe_groups
from bascule.kafka.handlers.group_administration.list_groups import handle_list_groups
from bascule.kafka.handlers.group_administration.offset_delete import handle_offset_delete

__all__ = [
    "handle_delete_groups",
    "handle_describe_groups",
    "handle_list_groups",
    "handle_offset_delete",
]
