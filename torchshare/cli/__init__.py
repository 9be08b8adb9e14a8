"""The verbs of the `torchshare` command, one per file."""
