"""What tables lose as time passes: expired keys, and rows that nobody needs any more.

::

    deadlines   which keys are due: their time to live is over
    expiry      `TableExpiry`: removes them, by messages of the leader
    forgotten   which rows nobody needs: purged ones, and those of keys that were removed
    forgetting  `TableForgetting`: deletes them, on each replica
"""
