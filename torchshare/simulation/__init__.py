"""Many jobs on many devices in virtual time: job traces, interference ratios, and reports of the policies."""
