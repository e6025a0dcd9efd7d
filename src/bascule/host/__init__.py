"""The operating system as ports: files, clock, randomness.

`api` defines the protocols. `real` implements them and is the only module that uses `os`, `time`
and `random`. All other packages receive these objects, so the simulator can pass its own.
"""
