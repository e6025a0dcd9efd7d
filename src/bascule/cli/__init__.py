"""The command line: `bascule serve`, streams, publish, read, inspect, demo.

Commands call the client and the node and format the results. `main` is the only place that converts
errors to texts and exit codes (`exit_codes`). A command imports the modules it needs when it runs.
So `bascule --help` is fast, and a node never loads modules that only readers need.
"""
