"""The pages for users, run as they are printed.

    pages       the fenced blocks of a page, and the marks in its source
    runner      a program: runs pages in order, one folder and one set of servers for them
    shell       a bash that keeps its folder, variables and jobs from block to block
    interpreter a program: a Python that keeps its names from block to block
    network     a network of the runner's own, so that pages have the default ports for themselves

A page prints default ports, so each run has loopback to itself (`unshare -rn`). Where there are no
user namespaces, pages run one after the other on the ports of this machine.
"""
