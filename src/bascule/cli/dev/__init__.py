"""`bascule dev`: a whole cluster on this machine, for developers.

    layout      directories, ports and the configuration file of each node
    processes   starts and stops the NATS server and the nodes, and reports those that end
    display     the table of listeners, what to try, and reports
    command     the command

All nodes use one NATS server, so that a publisher keeps its connection when a node is killed. Each
node is an ordinary `bascule serve` with a configuration file of its own. The kernel ends all
processes if `bascule dev` is killed.
"""
