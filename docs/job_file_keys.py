"""The keys of jobs.toml as tables: from the parser of `torchshare run` and the declared options."""

import argparse

from torchshare.cli import run
from torchshare.runtime.options import JobOptions, RuntimeOptions, declared

NO_KEYS = ("help", "jobs", "json")


def insert(_app, name, source):
    """Replaces the comments of the page."""
    if name == "jobs-toml":
        parser = argparse.ArgumentParser()
        run.configure(parser)
        of_jobs = next(group for group in parser._action_groups if group.title == "options of jobs")._group_actions
        others = [each for each in parser._actions if each not in of_jobs and each.dest not in NO_KEYS]
        for place, actions in {"outside of jobs": others, "of a job": of_jobs}.items():
            source[0] = source[0].replace(f"<!-- keys {place} -->", table(actions))


def table(actions):
    known = {option.name: option for options in (RuntimeOptions, JobOptions) for option in declared(options)}
    lines = ["| key | meaning |", "|---|---|"]
    for action in sorted(actions, key=lambda each: each.dest):
        option = known.get(action.dest)
        text = option.option.help if option else action.help
        if option:
            text = f"{option.expected}: {text}"
            if option.option.default is not None:
                text += f" Default: {option.option.default}."
        lines.append(f"| `{action.dest}` | {text.replace('|', chr(92) + '|').replace('%%', '%')} |")
    return "\n".join(lines)
