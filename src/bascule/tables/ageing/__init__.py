"""What tables lose as time passes: expired keys, and rows that nobody needs any more.

::

    deadlines   which keys are due: their time to live is over
    expiry      `TableExpiry`: removes them, by messages of the leader
"""
