#!/usr/bin/env bash
# Runs Kafka clients from PyPI against a node of its own and writes what came of it into docs/kafka-compatibility.md.
# usage: peers/kafka-clients/check.sh [path of the kera binary]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
kera=${1:-$root/target/release/kera}
venv=${KERA_CLIENTS_VENV:-$root/target/kafka-clients}
if [ ! -x "$venv/bin/python" ]; then
  python3 -m venv "$venv"
  "$venv/bin/pip" install -q -r "$here/requirements.txt"
fi
dir=$(mktemp -d)
shm=$(mktemp -d -p /dev/shm)
node=
end() {
  if [ -n "$node" ]; then kill "$node" 2>/dev/null || true; wait "$node" 2>/dev/null || true; fi
  rm -rf "$dir" "$shm"
}
trap end EXIT
"$kera" serve --data "$dir/data" --arena-dir "$shm" --arena-bytes 256MiB --listen 127.0.0.1:0 --http-listen none \
  --kafka-listen 127.0.0.1:0 --log-format json >"$dir/log" 2>&1 &
node=$!
for _ in $(seq 100); do
  grep -q '"message":"ready"' "$dir/log" && break
  sleep 0.1
done
address=$(sed -n 's/.*"message":"ready".*"kafka":"\([^"]*\)".*/\1/p' "$dir/log" | head -1)
"$venv/bin/python" "$here/check.py" "$address" "$root/docs/kafka-compatibility.md"
