"""What a node does as follower, candidate and leader.

`core` holds the shared state: term, vote, log, membership, and what is to be written, applied and
sent. `election`, `follower` and `leader` change it in response to messages and ticks.
`node.RaftNode` decides which role handles a message, and when a role ends.
"""
