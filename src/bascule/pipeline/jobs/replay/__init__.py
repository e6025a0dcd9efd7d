"""The replay job: publishes rows of a lake table, each record once even if the job is repeated."""
