"""Read before tests/python/conftest.py imports torch, whose OpenMP reads the environment when it is loaded."""

import os

# Test processes have more threads than there are cores: a thread that spins while it waits takes the core that another
# one needs. Numbers do not depend on it.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
