#!/usr/bin/env python3
"""A bad cable between two bridges: frames that come out of one end late, out of order, twice, or not at all.

    bench/cable.py br-a br-b --delay-ms 40 --jitter-ms 30 --loss 0.02 --duplicate 0.01

Does what `tc qdisc add ... netem` does where the kernel has no netem, with nothing but TAP devices: one for each bridge, and this program in between. Each frame
waits for --delay-ms and up to --jitter-ms more or less, each for itself, so that jitter puts them out of order. Runs until it is ended, and the devices
end with it. Needs root, and bridges that nobody else minds, such as those of a network namespace of one's own. Prints "there" when frames pass, and at the end how many did
(`--seed` repeats what happens to each, not when frames come).
"""
import argparse
import fcntl
import heapq
import os
import random
import select
import signal
import struct
import subprocess
import sys
import time

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
# A frame of Ethernet with room for tags; TAP devices without offloads give no larger ones.
FRAME_BYTES = 2048
# More are not kept: a cable has no memory for those who send faster than it delivers.
WAITING_MAX = 20_000


def tap(bridge):
    """A TAP device on a bridge. It is there as long as this program."""
    end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    asked = fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH22x", b"cable%d", IFF_TAP | IFF_NO_PI))
    name = asked[:16].rstrip(b"\0").decode()
    subprocess.run(["ip", "link", "set", name, "master", bridge, "up"], check=True)
    return end


def carry(ends, args, is_over):
    """Carries frames both ways until it is over. How many came, were lost, came twice, and found too many waiting."""
    chance, waiting, number = random.Random(args.seed), [], 0
    counts = {"frames": 0, "lost": 0, "twice": 0, "dropped": 0}
    other = {ends[0]: ends[1], ends[1]: ends[0]}
    while not is_over():
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _, _, to, frame = heapq.heappop(waiting)
            try:
                os.write(to, frame)
            except BlockingIOError:
                counts["dropped"] += 1
        until = min(waiting[0][0] - time.monotonic(), 0.1) if waiting else 0.1
        for end in select.select(ends, [], [], max(until, 0))[0]:
            for _ in range(64):
                try:
                    frame = os.read(end, FRAME_BYTES)
                except BlockingIOError:
                    break
                counts["frames"] += 1
                copies = 0 if chance.random() < args.loss else 2 if chance.random() < args.duplicate else 1
                counts["lost"] += copies == 0
                counts["twice"] += copies == 2
                for _ in range(copies):
                    if len(waiting) >= WAITING_MAX:
                        counts["dropped"] += 1
                        continue
                    late = (args.delay_ms + chance.uniform(-1, 1) * args.jitter_ms) / 1000
                    number += 1
                    heapq.heappush(waiting, (time.monotonic() + late, number, other[end], frame))
    return counts


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bridges", nargs=2, help="what it is between")
    parser.add_argument("--delay-ms", type=float, default=0)
    parser.add_argument("--jitter-ms", type=float, default=0, help="so much more or less, at most the delay")
    parser.add_argument("--loss", type=float, default=0, help="share of the frames that are lost, 0 to 1")
    parser.add_argument("--duplicate", type=float, default=0, help="share of those that come twice, 0 to 1")
    parser.add_argument("--seed", type=int, default=None)
    args = parser.parse_args()
    if not 0 <= args.jitter_ms <= args.delay_ms:
        parser.error(f"--jitter-ms is {args.jitter_ms}, allowed is 0 to --delay-ms, {args.delay_ms}")
    for name in ("loss", "duplicate"):
        if not 0 <= getattr(args, name) <= 1:
            parser.error(f"--{name} is {getattr(args, name)}, allowed is 0 to 1")
    ended = []
    for what in (signal.SIGTERM, signal.SIGINT):
        signal.signal(what, lambda *_: ended.append(True))
    try:
        ends = [tap(bridge) for bridge in args.bridges]
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"no TAP devices on {' and '.join(args.bridges)}: {error}; it needs root, /dev/net/tun, and bridges that are there")
    print("there", flush=True)
    counts = carry(ends, args, lambda: ended)
    print(", ".join(f"{count} {name}" for name, count in counts.items()), flush=True)


if __name__ == "__main__":
    main()
