#!/usr/bin/env bash
# What a start takes and what an idle node costs: time to ready, memory, restart after kill -9, many quiet lanes.
#
#   bench/start.sh [--kera PATH] [--arena 4GiB] [--seconds 25] [--dir DIR] [--json]
#
# Times are those of the `ready` line of the node's own log; memory is from /proc. Everything is made below DIR and in
# /dev/shm, and removed at the end. Needs as much shared memory as --arena and about twice that on the disk of DIR.
set -euo pipefail

kera=target/release/kera arena=4GiB seconds=25 parent=${TMPDIR:-/tmp} json=
while (($#)); do
  case $1 in
    --kera) kera=$2; shift 2 ;;
    --arena) arena=$2; shift 2 ;;
    --seconds) seconds=$2; shift 2 ;;
    --dir) parent=$2; shift 2 ;;
    --json) json=1; shift ;;
    *) echo "unknown argument $1; see the head of $0" >&2; exit 2 ;;
  esac
done

dir=$(mktemp -d "$parent/kera-start-XXXXXX")
shm=$(mktemp -d /dev/shm/kera-start-XXXXXX)
node=
end_node() { if [[ $node ]]; then kill -9 "$node" 2>/dev/null || true; wait "$node" 2>/dev/null || true; node=; fi; }
trap 'end_node; rm -rf "$dir" "$shm"' EXIT

# Starts the node on $dir/data with an arena of $1 and waits until it serves; sets `took` and `address`.
start_node() {
  : >"$dir/log"
  "$kera" serve --data "$dir/data" --arena-dir "$shm" --arena-bytes "$1" --listen 127.0.0.1:0 --http-listen none --kafka-listen none \
    --log-format json >>"$dir/log" 2>&1 &
  node=$!
  until grep -q '"message":"ready"' "$dir/log"; do
    kill -0 "$node" 2>/dev/null || { cat "$dir/log" >&2; exit 1; }
    sleep 0.005
  done
  took=$(grep '"message":"ready"' "$dir/log" | grep -o '"took_ms":[0-9]*' | cut -d: -f2)
  address=$(grep '"message":"ready"' "$dir/log" | grep -o '"listen":"[^"]*"' | cut -d'"' -f4)
}
fresh() { end_node; rm -rf "$dir/data" "$shm"/*; }
mib() { awk -v name="$1:" '$1 == name { printf "%.1f", $2 / 1024 }' "/proc/$node/status"; }
say() {
  if [[ $json ]]; then printf '{"figure":"%s","value":%s,"unit":"%s"}\n' "$1" "$2" "$3"
  else printf '%-62s %10s %s\n' "$1" "$2" "$3"; fi
}
restarts() { # what, arena
  for n in 1 2 3; do end_node; start_node "$2"; say "restart $n after kill -9, $1" "$took" ms; done
}

for n in 1 2 3; do fresh; start_node 2GiB; say "start $n on an empty directory" "$took" ms; done
sleep 2
say "resident, idle" "$(mib VmRSS)" MiB

for chunk in 16KiB 1KiB; do
  fresh; start_node "$arena"
  "$kera" bench produce --connect "$address" --stream x --keep --chunk-bytes "$chunk" --seconds "$seconds" >&2
  say "resident after load, arena $arena, chunks of $chunk" "$(mib VmRSS)" MiB
  say "of it beside the arena" "$(mib RssAnon)" MiB
  restarts "arena $arena, chunks of $chunk" "$arena"
done

fresh; start_node 1GiB
"$kera" bench produce --connect "$address" --stream x --keep --durability power --chunk-bytes 4KiB --rate 20000 \
  --seconds 3 >&2
restarts "little data, durability power" 1GiB

fresh; start_node auto
began=$(date +%s%N)
"$kera" bench produce --connect "$address" --stream lanes --keep --streams 100 --streamlets 1000 --chunk-bytes 1KiB \
  --records 1000000 --warmup-seconds 0 --linger-ms 50 >&2
say "100,000 lanes, 10 chunks each, default arena: time to write" $((($(date +%s%N) - began) / 1000000)) ms
say "100,000 lanes, right after that: resident" "$(mib VmRSS)" MiB
sleep 60
say "100,000 lanes, idle for a minute: resident" "$(mib VmRSS)" MiB
say "of it beside the arena" "$(mib RssAnon)" MiB
restarts "100,000 lanes" auto
