"""`torchshare cluster`: a queue of jobs on a Ray cluster."""

from __future__ import annotations

import argparse
import dataclasses
import graphlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from rich.table import Table

from torchshare.cli.outputs import check_outputs, print_table, refuse, write_timeline
from torchshare.cluster import client, connection
from torchshare.cluster.options import ArrayOptions
from torchshare.cluster.queued_job import deadlines_text
from torchshare.cluster.settings import STORAGE, ClusterSettings, QueueSettings
from torchshare.context.durations import duration_text
from torchshare.context.names import escaped, free_name
from torchshare.context.results import HOW_ENDED
from torchshare.scripts import command_line, targets
from torchshare.scripts.option_reader import GivenOptions, OptionReader


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    parser.description = (
        "Runs a queue of jobs on a Ray cluster, up to two jobs on a device. Without --address, it is the Ray of "
        "this machine, which `ray start --head` starts."
    )
    verbs = parser.add_subparsers(dest="what", required=True, metavar="VERB")

    def verb(name: str, text: str, run: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
        found = verbs.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.", allow_abbrev=False)
        found.add_argument("--address", help="of Ray (default: that of RAY_ADDRESS, else this machine's)")
        found.set_defaults(run=lambda arguments: _run(run, arguments))
        return found

    _configure_up(verb("up", "start the queue, or go on with the one in the storage", _up))
    _configure_submit(verb("submit", "add jobs to the queue", _submit))
    for name, text, run in (
        ("list", "list the jobs", _list),
        ("status", "show the devices and who shares them", _status),
    ):
        found = verb(name, text, run)
        found.add_argument("--json", action="store_true", help="print one JSON document")
    found.add_argument("--timeline", type=Path, metavar="OUT.json", help="write a trace for https://ui.perfetto.dev")
    found.add_argument("--report", type=Path, metavar="OUT.html", help="write a page about the jobs and devices")
    logs = verb("logs", "print what a job has printed", _logs)
    logs.add_argument("-f", "--follow", action="store_true", help="until the job has ended")
    stop = verb("stop", "cancel a job, or all of an array", _stop)
    for each in (logs, stop):
        each.add_argument("job", metavar="NAME")
    verb("down", "end the queue after the jobs' last checkpoints; `up` goes on with it", _down)


def _configure_up(parser: argparse.ArgumentParser) -> None:
    reader = OptionReader(parser)
    reader.add(ClusterSettings, "the cluster")
    reader.add(QueueSettings, "the queue")
    parser.set_defaults(reader=reader)


def _configure_submit(parser: argparse.ArgumentParser) -> None:
    reader = OptionReader(parser)
    reader.add_jobs(ArrayOptions)
    parser.add_argument("--no-wait", action="store_true", help="return at once; else a single job is waited for")
    parser.set_defaults(reader=reader)


def options_first(parser: argparse.ArgumentParser, words: list[str]) -> list[str]:
    """For `submit`, as for `torchshare run`."""
    verbs = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    if not words or words[0] != "submit" or "-h" in words or "--help" in words:
        return words
    return ["submit", *command_line.options_first(verbs.choices["submit"], words[1:])]


def _run(run: Callable[[argparse.Namespace], int], arguments: argparse.Namespace) -> int:
    try:
        return run(arguments)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ray takes a moment to disconnect
        raise
    except BrokenPipeError:
        raise
    except (ValueError, RuntimeError, OSError) as error:
        return refuse(error)


def _up(arguments: argparse.Namespace) -> int:
    given = arguments.reader.read(arguments, {})
    storage = given.options.pop("storage", STORAGE)
    settings = ClusterSettings(
        str(Path(storage).expanduser().absolute()),
        QueueSettings(**given.of(QueueSettings)),
        **given.of(ClusterSettings),
    )
    connection.up(arguments.address, settings)
    print(f"The queue is up, in {settings.storage}, with the policy {settings.queue.policy}")
    return 0


def _submit(arguments: argparse.Namespace) -> int:
    given: GivenOptions = arguments.reader.read(arguments, os.environ)
    named = [targets.split_name(word) for word in given.targets]
    given.check_names([name for name, _ in named if name is not None])
    prepared = [client.prepared_array(target, **{"name": name, **given.of_job(name)}) for name, target in named]
    ordered = _ordered(prepared)
    connection.up(arguments.address)
    handles = client.send(ordered)
    for job in handles:
        print(f"Job '{escaped(job.name)}' is submitted", file=sys.stderr)
    return 0 if arguments.no_wait or len(handles) > 1 else _wait(handles[0])


def _ordered(arrays: list[list[client.Prepared]]) -> list[client.Prepared]:
    """The jobs, those for which others wait before them. A name that one of them, or an array, has does not mean an
    earlier one in the queue, except in its own `after`. Raises ValueError if jobs wait for each other."""
    numbers: dict[str, int] = {}
    for number in sorted(range(len(arrays)), key=lambda number: not arrays[number][0].is_named):
        spec = arrays[number][0].spec
        numbers[free_name(spec.array or spec.name, numbers)] = number
    # By name: the number of the array or job, and the jobs that it means.
    known = {
        f"{name}_{job.spec.index}": (number, [job])
        for name, number in numbers.items()
        for job in arrays[number]
        if job.spec.array
    }
    known |= {name: (number, arrays[number]) for name, number in numbers.items()}
    awaited = [
        {name: known[name] for name in jobs[0].spec.awaited if name in known and known[name][0] != number}
        for number, jobs in enumerate(arrays)
    ]
    graph = {number: [other for other, _ in found.values()] for number, found in enumerate(awaited)}
    try:
        order = list(graphlib.TopologicalSorter(graph).static_order())
    except graphlib.CycleError as error:
        names = {number: name for name, number in numbers.items()}
        path = " -> ".join(f"'{names[number]}'" for number in reversed(error.args[1]))
        raise ValueError(f"jobs wait for each other to start: {path}") from None
    ordered = []
    for number in order:
        submissions = {name: [job.spec.submission for job in jobs] for name, (_, jobs) in awaited[number].items()}
        ordered += [dataclasses.replace(job, spec=job.spec.with_awaited(submissions)) for job in arrays[number]]
    return ordered


def _wait(job: client.Handle) -> int:
    name = escaped(job.name)
    try:
        for text in job.logs(follow=True):
            print(text, end="", flush=True)
    except (KeyboardInterrupt, BrokenPipeError):
        print(f"Job '{name}' stays in the queue; `torchshare cluster stop` ends it", file=sys.stderr)
        raise
    row = job.status()
    print(f"Job '{name}' {_how(row)}", file=sys.stderr)
    return 0 if row["state"] == "finished" else 1


def _list(arguments: argparse.Namespace) -> int:
    connection.connect(arguments.address)
    rows = client.jobs()
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return 0
    table = Table(box=None, pad_edge=False)
    for column in ("job", "state", "priority", "device", "beside", "steps", "elapsed s", "ran s", "reason"):
        table.add_column(column, justify="right" if column.endswith(" s") or column == "steps" else "left")
    deadlines = _deadlines(table, rows)
    for row in rows:
        texts = [row[key] or "-" for key in ("name", "state", "priority", "device", "beside")]
        table.add_row(
            *texts, str(row["steps"]), f"{row['elapsed_s']:.0f}", f"{row['ran_s']:.0f}", _reason(row), *deadlines(row)
        )
    print_table(table)
    return 0


def _status(arguments: argparse.Namespace) -> int:
    check_outputs({"--timeline": arguments.timeline, "--report": arguments.report})
    connection.connect(arguments.address)
    if arguments.timeline is not None:
        from torchshare.cluster import page  # slow to import

        write_timeline(arguments.timeline, page.events_of_queue(client.spans()))
    hosts, rows = client.hosts(), {row["name"]: row for row in client.jobs()}
    if arguments.report is not None:
        from torchshare.cluster import page

        page.write_queue(arguments.report, list(rows.values()), hosts, client.spans())
    if arguments.json:
        print(json.dumps({"devices": hosts, "jobs": list(rows.values())}, indent=2))
        return 0
    table = Table(box=None, pad_edge=False)
    for column in ("device", "job", "state", "slowdown", "predicted"):
        table.add_column(column)
    deadlines = _deadlines(table, rows.values())
    for host in (host for host in hosts if host["up"]):
        names = host["jobs"] or [None]
        for name in names:
            row = rows.get(name, {})
            numbers = [f"{row[key]:.2f}" if row.get(key) else "-" for key in ("slowdown", "predicted_slowdown")]
            table.add_row(_place(host), name or "-", row.get("state", "-"), *numbers, *deadlines(row))
    print_table(table)
    for host in (host for host in hosts if host["error"]):
        print(f"Device {_place(host)} cannot be started: {escaped(host['error'])}")
    notes = [host["note"] for host in hosts if host["note"]]
    for note in dict.fromkeys(notes):
        print(f"{notes.count(note)} of {len(hosts)} devices: {note}")
    states = [row["state"] for row in rows.values()]
    counts = [f"{states.count(state)} {state}" for state in dict.fromkeys(states)]
    print(f"{len(rows)} jobs{': ' if counts else ''}{', '.join(counts)}")
    kept = [row["deadline"] for row in rows.values() if row["deadline"] is not None]
    if kept:
        print(deadlines_text(kept))
    return 0


def _deadlines(table: Table, rows: Iterable[dict[str, Any]]) -> Callable[[dict[str, Any]], list[str]]:
    """Adds a column if a job has a deadline. Returns what is in it, for a row."""
    if all(row["deadline_s"] is None for row in rows):
        return lambda row: []
    table.add_column("deadline")

    def cell(row: dict[str, Any]) -> list[str]:
        known = row.get("deadline_s")
        return ["-" if known is None else f"{duration_text(known)}: {row['deadline']}"]

    return cell


def _place(host: dict[str, Any]) -> str:
    return f"{host['node'][:8]}:{host['index']}"


def _logs(arguments: argparse.Namespace) -> int:
    connection.connect(arguments.address)
    for text in client.job(arguments.job).logs(arguments.follow):
        print(text, end="", flush=True)
    return 0


def _stop(arguments: argparse.Namespace) -> int:
    connection.connect(arguments.address)
    for row in client.cancel(arguments.job):
        print(f"Job '{escaped(row['name'])}' {_how(row)}")
    return 0


def _down(arguments: argparse.Namespace) -> int:
    connection.connect(arguments.address)
    connection.down()
    print("The queue is down; `torchshare cluster up` goes on with it")
    return 0


def _reason(row: dict[str, Any]) -> str:
    if row["error"]:
        return str(row["error"])
    if row["after"]:
        return f"waits for {', '.join(row['after'])}"
    return "waits for a place in its array" if row["held"] else ""


def _how(row: dict[str, Any]) -> str:
    because = f": {escaped(_reason(row))}" if _reason(row) else ""
    return HOW_ENDED.get(row["state"], f"is {row['state']}") + because
