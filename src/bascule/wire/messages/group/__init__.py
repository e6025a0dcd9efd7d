"""The messages between a coordinator and the members of a group."""
