"""Executed by language_model.py in its own globals: `--key=value` overrides a setting."""

import sys
from ast import literal_eval

for arg in sys.argv[1:]:
    key, val = arg.removeprefix("--").split("=")
    if key not in globals():
        raise ValueError(f"unknown config key: {key}")
    globals()[key] = literal_eval(val)
