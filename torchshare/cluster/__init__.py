"""Many jobs on many devices: job traces, the simulator, its reports."""
