# Sourced by the scripts beside it: a node of its own on loopback, which ends with the script.
#
# start_node KERA [ARGUMENT ...]   starts it; its Kafka address is in $address, what it says in $node_dir/log
# start_cluster KERA               three nodes instead; $address has all three, a list with commas between

node=
node_dir=$(mktemp -d)
node_shm=$(mktemp -d -p /dev/shm)

end_node() {
  if [ -n "$node" ]; then kill "$node" 2>/dev/null || true; wait "$node" 2>/dev/null || true; fi
  rm -rf "$node_dir" "$node_shm"
}
trap end_node EXIT

start_node() {
  local kera=$1
  shift
  "$kera" serve --data "$node_dir/data" --arena-dir "$node_shm" --arena-bytes 256MiB --listen 127.0.0.1:0 --http-listen none \
    --kafka-listen 127.0.0.1:0 --log-format json "$@" >"$node_dir/log" 2>&1 &
  node=$!
  for _ in $(seq 100); do
    address=$(sed -n 's/.*"message":"ready".*"kafka":"\([^"]*\)".*/\1/p' "$node_dir/log" | head -1)
    if [ -n "$address" ]; then return; fi
    sleep 0.1
  done
  cat "$node_dir/log" >&2
  return 1
}

# The ports are the process's own: several runs at once do not meet.
start_cluster() {
  local kera=$1 port=$((20000 + $$ % 1000 * 12))
  "$kera" cluster up --nodes 3 --data "$node_dir/data" --arena-bytes 256MiB --port "$port" --kafka-port $((port + 3)) \
    --cluster-port $((port + 6)) --http-port $((port + 9)) >"$node_dir/log" 2>&1 &
  node=$!
  address=127.0.0.1:$((port + 3)),127.0.0.1:$((port + 4)),127.0.0.1:$((port + 5))
  for _ in $(seq 200); do
    if "$kera" status --json --connect "127.0.0.1:$port" 2>/dev/null | grep -o '"state": *"live"' | wc -l | grep -qx 3; then return; fi
    sleep 0.1
  done
  cat "$node_dir/log" >&2
  return 1
}
