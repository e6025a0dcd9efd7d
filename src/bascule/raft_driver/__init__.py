"""Raft on a real machine: a store on SQLite, a thread for the disk, TCP, and asyncio around it."""
