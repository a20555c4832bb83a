#!/usr/bin/env bash
# The same random requests to Apache Kafka and to KerA: their answers must be the same, but for what
# crates/server/examples/kafka-oracle/answer.rs lists.
#
#   oracle.sh KERA [--seed N] [--steps N]   both, fresh; ends with 1 and shows the difference if there is one
#   oracle.sh record [--seed N] [--steps N] Kafka alone, its answers into spec/kafka/oracle.txt for the test that needs no Kafka
#
# KERA is the program, such as ./target/release/kera. The oracle itself: cargo build -p kera-server --example kafka-oracle
# Environment: ORACLE (target/debug/examples/kafka-oracle); KAFKA_PORT and the others of kafka.sh.
set -euo pipefail

script_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$script_dir/../.." && pwd)
oracle=${ORACLE:-$root/target/debug/examples/kafka-oracle}
[ -x "$oracle" ] || { echo "oracle.sh: $oracle is missing; build it: cargo build -p kera-server --example kafka-oracle" >&2; exit 2; }
[ $# -gt 0 ] || { sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit 2; }
kera=$1
shift

work=$(mktemp -d)
kera_pid=
finish() {
  if [ -n "$kera_pid" ]; then kill "$kera_pid" 2> /dev/null || true; wait "$kera_pid" 2> /dev/null || true; fi
  "$script_dir/kafka.sh" stop
  rm -rf "$work"
}
trap finish EXIT

# The oracle's records are older than its markers: segments do not end because of that, and retention lets them be. Where a request
# sets a shorter one, Kafka looks at it half a minute after its start: not at all here, or the speed of the machine would tell.
kafka=$("$script_dir/kafka.sh" start log.roll.hours=100000 log.retention.ms=-1 log.initial.task.delay.ms=86400000)
if [ "$kera" = record ]; then
  "$oracle" --kafka "$kafka" --seed 1 --steps 300 "$@" --record "$root/spec/kafka/oracle.txt"
  exit
fi
port=${KERA_KAFKA_PORT:-19292}
"$kera" serve --data "$work/data" --arena-bytes 256MiB --listen 127.0.0.1:0 --http-listen none \
  --kafka-listen "127.0.0.1:$port" --kafka-auto-create false > "$work/kera.log" 2>&1 &
kera_pid=$!
for _ in $(seq 100); do
  if (exec 3<> "/dev/tcp/127.0.0.1/$port") 2> /dev/null; then break; fi
  kill -0 "$kera_pid" 2> /dev/null || { cat "$work/kera.log" >&2; exit 2; }
  sleep 0.1
done
"$oracle" --kafka "$kafka" --kera "127.0.0.1:$port" "$@"
