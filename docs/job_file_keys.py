"""The keys of jobs.toml as tables, from the declared options."""

from torchshare.cli import run
from torchshare.runtime.declared import on_the_command_line
from torchshare.runtime.options import JobOptions


def insert(_app, name, source):
    """Replaces the comments of the page."""
    if name == "jobs-toml":
        for place, classes in {"outside of jobs": run.OPTIONS.values(), "of a job": [JobOptions]}.items():
            options = [option for each in classes for option in on_the_command_line(each)]
            source[0] = source[0].replace(f"<!-- keys {place} -->", table(options))


def table(options):
    lines = ["| key | meaning |", "|---|---|"]
    for each in sorted(options, key=lambda each: each.name):
        default = "" if each.option.default is None else f" Default: {each.option.default}."
        text = f"{each.expected}: {each.option.help}{default}".replace("|", "\\|")
        lines.append(f"| `{each.name}` | {text} |")
    return "\n".join(lines)
