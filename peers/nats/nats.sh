#!/usr/bin/env bash
# NATS with JetStream, as a peer to measure against. `kera-bench` starts and stops the server itself.
#
#   nats.sh fetch | build   server and load generator from their Go modules, into $KERA_PEERS/nats; needs Go
#   nats.sh program         the server's path
#   nats.sh load            the load generator's path
#   nats.sh version
#
# Environment: KERA_PEERS (default ~/.cache/kera-peers) is safe to delete.
set -euo pipefail

script_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=${KERA_PEERS:-${XDG_CACHE_HOME:-$HOME/.cache}/kera-peers}/nats

fail() { echo "nats.sh: $*" >&2; exit 1; }

build() {
  command -v go > /dev/null || fail "go is missing; NATS is built from its module (Debian: apt-get install golang)"
  mkdir -p "$root"
  cd "$script_dir"
  # Both are pinned in go.mod and go.sum beside this script.
  go build -o "$root/nats-server" github.com/nats-io/nats-server/v2
  go build -o "$root/nats-bench" .
}

there() { [ -x "$root/$1" ] && echo "$root/$1" || fail "$1 is missing; run: peers/nats/nats.sh fetch"; }

case ${1:-help} in
  fetch | build) build; there nats-server ;;
  program) there nats-server ;;
  load) there nats-bench ;;
  version) "$(there nats-server)" --version ;;
  *) sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; [ "${1:-help}" = help ] || exit 2 ;;
esac
