"""What operators do to the nodes, leaders and replicas of a running cluster.

operations   the requests
move_plan    moves that are planned at once, and begun a few at a time
progress     what is left to do of them
"""
