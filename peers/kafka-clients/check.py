"""What Kafka clients can do with a node: each check is a function, its outcome a row of the table in the document.

usage: check.py ADDRESS DOCUMENT [WORDS OF THE CHECKS THAT ARE WANTED]

Checks of Python's clients and of Kafka's tools are in checks/, those of other languages are programs of their own.
"""

import os
import re
import subprocess
import sys
import time
from importlib.metadata import version

# Their checks are noted in this order.
from checks import confluent, kafka_python, aio, tools  # noqa: F401, I001
from checks.suite import ADDRESS, CHECKS

DOCUMENT = sys.argv[2]
BEGIN, END = "<!-- begin: made by peers/kafka-clients/check.sh -->", "<!-- end -->"


def programs():
    """Clients of other languages: each a program that prints its rows, as KERA_CLIENTS says, one command a line."""
    for command in filter(None, os.environ.get("KERA_CLIENTS", "").splitlines()):
        child = subprocess.Popen([*command.split(), ADDRESS], stdout=subprocess.PIPE, text=True)
        for line in child.stdout:
            # Maven ends its colours on a line of its own, also when nobody sees them.
            row = re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip("\n").replace("|", "/").split("\t")
            if len(row) == 3:
                yield row
            else:
                print(line, end="", flush=True)
        if child.wait() != 0:
            yield command.split()[-1], "the program", f"fails: exit {child.returncode}"


def main():
    rows = []
    only = sys.argv[3] if len(sys.argv) > 3 else ""
    for client, what, function in CHECKS:
        if only not in f"{client} {what}":
            continue
        start = time.time()
        try:
            function()
            result = "works"
        except BaseException as error:  # noqa: BLE001 - whatever it is goes into the table
            result = f"fails: {type(error).__name__}: {error}".replace("\n", " ").replace("|", "/")[:200]
        print(f"{client} · {what} · {result} · {time.time() - start:.1f} s", flush=True)
        release = tools.tools_version() if client == tools.TOOLS_NAME else version(client)
        rows.append(f"| {client} {release} | {what} | {result} |")
    for client, what, result in programs():
        if only in f"{client} {what}":
            print(f"{client} · {what} · {result}", flush=True)
            rows.append(f"| {client} | {what} | {result[:200]} |")
    failed = sum("| works |" not in row for row in rows)
    if failed:
        print(f"{failed} of {len(rows)} fail")
    write(rows, whole=not only)
    sys.exit(1 if failed else 0)


def write(rows, whole):
    """The table anew or, if only some were wanted, their rows where they are in it."""
    with open(DOCUMENT, encoding="utf-8") as file:
        before, rest = file.read().split(BEGIN)
    table, after = rest.split(END)
    if not whole:
        # A row is known by its client and what it tells of.
        known = {tuple(row.split("|")[1:3]): row for row in rows}
        rows = [known.get(tuple(row.split("|")[1:3]), row) for row in table.strip().splitlines()[2:]]
    table = "\n".join([BEGIN, "| client | what | result |", "| --- | --- | --- |", *rows, END])
    with open(DOCUMENT, "w", encoding="utf-8") as file:
        file.write(before + table + after)


main()
