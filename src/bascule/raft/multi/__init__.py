"""Many groups in one process: one tick, one heartbeat per peer, no message for a group at rest.

```
          hub of node 1                                        hub of node 2
   +-------------------------+   bundle: messages of any   +-------------------------+
   | group 1  leader, awake  |   group, the beat, changes  | group 1  follower       |
   | group 2  leader, rests  | --------------------------> | group 2  rests          |
   | group 3  rests          | <-------------------------- | group 3  leader, rests  |
   +-------------------------+                             +-------------------------+
     led: {2}   followed: {3}                                led: {3}   followed: {2}
```

**A tick costs what is due in it.** A node's clock is moved when something happens to it or when its
own timer is due; a heap of those times says which that are.

**A group at rest costs nothing.** A leader whose group has been quiet for an election timeout (all
committed, on every member's disk) puts it to rest: it stops its heartbeats, and the group joins the
set that its hub keeps for each member's hub (`resting`). A bundle that brings the news is the last
heartbeat of the group; a follower that has exactly that log, committed, suspends its timer. From
then on the beat between the two hubs, one small bundle per heartbeat interval and direction however
many groups rest, is the heartbeat of all of them. The leader does not wait for agreement before it
rests: until the news arrives, a follower's timer runs as between two heartbeats.

**Whatever happens wakes.** A node wakes by itself on a message or a request; the hub sees that it
did and takes it out of the sets. Beyond that:

* A follower that does not agree, or woke, refuses, until the set no longer holds the group. The
  leader wakes.
* A peer is silent for an election timeout: the groups that rest under it wake, each with the
  silence counted into its own timer, so that their elections spread as the dice of the nodes fell.
* Bundles pass from a peer but not to it: every bundle says up to which tick its sender heard the
  other, so the hub knows that it is out of contact. A group that has no majority of its voters in
  contact wakes, to step down or to go on.
* A peer comes back, after a restart or after it gave us up: it has another incarnation or session.
  Whatever rested with it wakes, and the sets begin empty.
* A leader was deposed behind its back: who took part in the election woke, and so refuses. If none
  of them can be heard, there is no majority in contact.

A group rests although a minority of its members is away, so that a node that is down costs nothing
either. Those may lag behind; when they are back, one of the rules above wakes the group for them.

**Safety does not depend on any of this.** Rest is nothing but a timer that does not run; votes,
terms and commits know nothing of it, and a lease is never extended by a beat. A wrong belief of the
hub costs an election or a heartbeat.

What it does not do: a group in use has heartbeats of its own (they share bundles), and a process
that stalls for longer than an election timeout loses the groups it leads to the others.
"""
