"""What the machine offers, as ports: files, clock, randomness.

`api` says what may be asked; `real` is the only module that touches `os`, `time` and `random`.
Everything above receives these, so the simulator can hand in its own.
"""
