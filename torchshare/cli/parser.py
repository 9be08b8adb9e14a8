from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """One whose errors are one line: the usage of `torchshare run` has thirty."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"torchshare: error: {message}; see {self.prog} --help\n")

    def refuse(self, unknown: Sequence[str]) -> None:
        """Exits if there are words that `parse_known_args` did not know."""
        for word in unknown:
            if not word.startswith("-"):
                self.error(f"unexpected argument '{word}'")
            options = {option.lstrip("-"): option for option in self._option_string_actions}
            known = difflib.get_close_matches(word.partition("=")[0].lstrip("-"), options, n=1)
            self.error(f"unknown option {word}" + "".join(f", did you mean {options[each]}?" for each in known))
