"""What a node does to its logs in the background, each part a loop of its own."""
