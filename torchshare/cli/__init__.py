"""The `torchshare` command: a file per verb."""
