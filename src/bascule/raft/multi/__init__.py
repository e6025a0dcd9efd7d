"""Many groups in one process: one tick, one coalesced heartbeat per peer, and hibernating groups.

```
        process of node 1                                    process of node 2
   +-----------------------------+   bundle: messages    +-----------------------------+
   | group 1  leader, awake      |   of any group, the   | group 1  follower, awake    |
   | group 2  leader, hibernates | ---- heartbeat, ----> | group 2  hibernates         |
   | group 3  hibernates         | <----- changes ------ | group 3  leader, hibernates |
   +-----------------------------+                       +-----------------------------+
     led: {2}   followed: {3}                              led: {3}   followed: {2}
```

**The cost of a tick is the work that is due in it.** The clock of a node is moved when a message or
a request arrives for it, or when its own timer is due; a heap of due times finds those nodes.

**A hibernating group costs nothing.** When a group has been quiet for an election timeout (every
entry is committed and on every member's disk), its leader hibernates. It sends no heartbeats, and
the group joins the set of hibernating groups that `MultiRaft` keeps for the process of each member.
The bundle that carries this change is the last heartbeat of the group. A follower with exactly that
log, committed, then stops its election timer. From then on the heartbeat between the two processes,
one small bundle per heartbeat interval and direction, replaces the heartbeats of all hibernating
groups. The leader does not wait for agreement: until the change arrives, a follower's election
timer runs as between two heartbeats.

**A message or a request wakes a node.** `MultiRaft` notices that it woke and removes the group from
the sets. Groups are also woken in these cases:

* A follower that does not agree, or that woke, refuses the hibernation until the set no longer
  contains the group. The leader wakes.
* No message from a peer arrives for an election timeout. The groups that follow it wake, and each
  counts the silence into its own election timer, so that the randomized timeouts spread the
  elections.
* Bundles arrive from a peer but do not reach it. Every bundle says up to which tick its sender has
  heard the other side, so the loss of contact is known. A group without a majority of its voters in
  contact wakes; its leader steps down or goes on.
* A peer returns, after a restart or after it considered this process lost. It then has another
  incarnation or session. All groups that hibernate together with it wake, and the sets are reset.
* Another leader was elected without the leader's knowledge. The voters of that election woke, so
  they refuse. If none of them can be reached, no majority is in contact.

A group hibernates although a minority of its members is unreachable, so that a failed node costs
nothing either. Those members may lag. When they return, one of the rules above wakes the group.

**Safety does not depend on hibernation.** It only stops timers. Votes, terms and commits do not
depend on it, and the heartbeat between processes never extends a lease. A wrong belief costs an
election or a heartbeat.

Limits: an active group sends heartbeats of its own (they share bundles), and a process that stalls
for longer than an election timeout loses the leadership of its groups.
"""
