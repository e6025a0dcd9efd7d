"""What operators do to the nodes, leaders and replicas of a running cluster.

operations   the requests
progress     what is left to do of them
"""
