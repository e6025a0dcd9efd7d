"""The command line: `bascule serve`, streams, publish, read, inspect, demo.

Commands only put words to what the client and the node do. `main` is the door: the one place that
turns errors into sentences and exit codes (`exits`). Modules a command needs are imported when it
runs, so that `bascule --help` is quick and a node never loads what only readers need.
"""
