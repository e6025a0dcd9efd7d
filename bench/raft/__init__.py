"""Three Raft systems behind one set of lines, so that each is measured in the same way.

A member is a process of its own. It is moved by lines on its standard input and answers each by
one line of JSON on its standard output:

```
leader                          {"leader": true}
load IN_FLIGHT SECONDS BYTES    {"committed": N, "seconds": S, "p50_ms": ..., "p99_ms": ...}
statistics                      {"syncs": N}, or {} where the system does not count them
exit
```

`load` is said to the leader alone, which proposes in its own process: so many proposals at first,
and one more for each that is committed and applied, until the time is over; then it waits for
the rest. All that were committed count, and the time runs from the first proposal to the last
answer.
"""
