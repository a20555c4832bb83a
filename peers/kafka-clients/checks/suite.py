"""What the checks share: how one is noted, the node's address, and how to wait for what is to come."""

import sys
import time

ADDRESS = sys.argv[1]
CHECKS = []
COMPRESSIONS = ["none", "gzip", "snappy", "lz4", "zstd"]


def check(client, what):
    def note(function):
        CHECKS.append((client, what, function))
        return function

    return note


def expect(found, wanted, what):
    if found != wanted:
        raise AssertionError(f"{what}: {found!r} instead of {wanted!r}")


def until(condition, what, seconds=70):
    """Waits until the condition holds; what it says of itself is shown if it never does."""
    limit = time.time() + seconds
    while not condition():
        if time.time() > limit:
            raise AssertionError(f"{what() if callable(what) else what}: not in {seconds} s")
        time.sleep(0.05)
