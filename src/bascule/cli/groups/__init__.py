"""`bascule group`: consumer groups, their members, committed offsets and lag.

commands   list, info, reset-offsets and delete
tables     the tables, and the JSON
"""

from bascule.cli.groups.commands import groups

__all__ = ["groups"]
