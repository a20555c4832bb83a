#!/usr/bin/env python3
"""Makes the data files of this folder from the npm package `vega-datasets`.

    npm pack vega-datasets@3.2.1 && tar xzf vega-datasets-3.2.1.tgz
    pip install pyarrow
    python3 data/regenerate.py package/data      # needs the `zstd` command

The output is the same bytes every time for the same package and zstd version.
"""

import csv
import datetime
import json
import pathlib
import subprocess
import sys

import pyarrow.parquet

HERE = pathlib.Path(__file__).parent
FIELDS = ["date", "delay", "distance", "origin", "destination"]
UNTIL = datetime.datetime(2001, 1, 22)
SAMPLE_EVERY, SAMPLE_ROWS = 1009, 200


def flights(source):
    """Rows of the first three weeks of 2001, in order of departure."""
    table = pyarrow.parquet.read_table(source / "flights-3m.parquet").slice(0, 600_000)
    columns = [table[name].to_pylist() for name in FIELDS]
    for date, delay, distance, origin, destination in zip(*columns):
        if date >= UNTIL:
            break
        yield [f"{date:%Y-%m-%d %H:%M}", delay, distance, origin, destination]


def write_csv(path, header, rows):
    with open(path, "w", newline="") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


def main():
    source = pathlib.Path(sys.argv[1])
    rows = list(flights(source))
    whole = HERE / "flights.csv"
    write_csv(whole, FIELDS, rows)
    subprocess.run(["zstd", "-q", "-f", "--ultra", "-22", "--rm", whole, "-o", f"{whole}.zst"], check=True)

    sample = rows[::SAMPLE_EVERY][:SAMPLE_ROWS]
    write_csv(HERE / "flights-sample.csv", FIELDS, sample)
    with open(HERE / "flights-sample.ndjson", "w") as out:
        for row in sample:
            out.write(json.dumps(dict(zip(FIELDS, row)), separators=(",", ":")) + "\n")

    seen = {row[3] for row in rows} | {row[4] for row in rows}
    with open(source / "airports.csv", newline="") as file:
        airports = sorted([a["iata"], a["city"], a["state"]] for a in csv.DictReader(file) if a["iata"] in seen)
    write_csv(HERE / "airports.csv", ["iata", "city", "state"], airports)
    print(f"{len(rows)} flights, {len(sample)} in the sample, {len(airports)} of {len(seen)} airports named")


if __name__ == "__main__":
    main()
