"""Requests between nodes, with API keys of Bascule's own. Only the peer listener serves them."""
