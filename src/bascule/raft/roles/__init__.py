"""What a node does as follower, candidate and leader, around the state they share (`core`).

`core` holds term, vote, log, members and what is to be sent; `election`, `following` and `leading`
change it in answer to messages and ticks. Nothing here waits, and nothing is carried out here.
"""
