"""The peer listener: serves the other nodes of the cluster.

    listener    one port for requests with Kafka's framing, and for the connections of Raft
    handlers    the requests: hello, control, replica fetch

The first bytes of a connection tell what it is. Requests begin with PeerHello: a node refuses peers
of another cluster, and peers that expect another node here.
"""
