#!/usr/bin/env bash
# Redis, as a peer to measure against. `kera-bench` starts and stops the server itself.
#
#   redis.sh fetch      the server, if none is installed: Debian's packages, unpacked without root into $KERA_PEERS/redis
#   redis.sh build      the load generator beside this script
#   redis.sh program    the server's path
#   redis.sh version
#
# Environment: KERA_PEERS (default ~/.cache/kera-peers) is safe to delete.
set -euo pipefail

script_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=${KERA_PEERS:-${XDG_CACHE_HOME:-$HOME/.cache}/kera-peers}/redis

fail() { echo "redis.sh: $*" >&2; exit 1; }

fetch() {
  if command -v redis-server > /dev/null || [ -e "$root/redis-server" ]; then return; fi
  command -v apt-get > /dev/null || fail "redis-server is missing; install it with your system's package manager"
  rm -rf "$root.part"
  mkdir -p "$root.part"
  (
    cd "$root.part"
    # What the server needs beyond what every Debian has.
    apt-get download redis-server redis-tools libjemalloc2 liblzf1 liblua5.1-0 lua-cjson lua-bitop 2> fetch.log || { cat fetch.log >&2; exit 1; }
    for package in *.deb; do dpkg -x "$package" .; done
    rm -f ./*.deb
    cat > redis-server <<'SERVER'
#!/bin/sh
here=$(dirname "$0")
libraries=$(dirname "$(find "$here/usr/lib" -name 'libjemalloc.so.2' | head -n 1)")
LD_LIBRARY_PATH="$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" exec "$here/usr/bin/redis-server" "$@"
SERVER
    chmod +x redis-server
  )
  mv "$root.part" "$root"
}

program() {
  command -v redis-server || { [ -x "$root/redis-server" ] && echo "$root/redis-server"; } \
    || fail "redis-server is missing; run: peers/redis/redis.sh fetch"
}

case ${1:-help} in
  fetch) fetch; program ;;
  build) cargo build --quiet --release --manifest-path "$script_dir/Cargo.toml" --target-dir "$script_dir/target" ;;
  program) program ;;
  version) "$(program)" --version | cut -d ' ' -f 1-3 ;;
  *) sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; [ "${1:-help}" = help ] || exit 2 ;;
esac
