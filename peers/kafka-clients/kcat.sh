#!/usr/bin/env bash
# What kcat can do with a node: each check is a function, its outcome a line "client, what, result", parted by tabs.
# usage: kcat.sh ADDRESS
set -uo pipefail
address=$1
release=$(kcat -V | sed -n 's/^Version \([^ ]*\) .*librdkafka \([^ ]*\) .*/\1, librdkafka \2/p')
dir=$(mktemp -d)
members=()
end() {
  for member in "${members[@]}"; do kill -9 "$member" 2>/dev/null; done
  rm -rf "$dir"
}
trap end EXIT

cat_() { timeout 30 kcat -b "$address" "$@"; }
write() { cat_ -P "$@"; } # TOPIC follows as -t
same() { # two files: the lines that differ are counted
  local differ
  differ=$(diff <(sort "$1") <(sort "$2") | grep -c '^[<>]')
  [ "$differ" = 0 ] || { echo "$differ records differ"; return 1; }
}
until_() { # what, command...
  local what=$1
  shift
  for _ in $(seq 150); do
    if "$@" 2>/dev/null; then return; fi
    sleep 0.2
  done
  echo "$what: not in 30 s"
  return 1
}

check() { # what, function
  local why
  if why=$($2 2>&1); then why=works; else why="fails: $(tail -n 2 <<<"$why" | tr '\n\t|' '  /' | cut -c1-150)"; fi
  printf 'kcat %s\t%s\t%s\n' "$release" "$1" "$why"
}

compressed() {
  local kind topic
  for kind in none gzip snappy lz4 zstd; do
    topic=kcat-$kind
    seq 2000 | sed "s/.*/key&:$kind &/" >"$dir/in"
    write -t "$topic" -K: -z "$kind" -H h=x "$dir/in" -l || return 1
    cat_ -C -q -t "$topic" -o beginning -e -K: >"$dir/out" || return 1
    same "$dir/in" "$dir/out" || return 1
    cat_ -C -q -t "$topic" -o beginning -e -c 1 -f '%h\n' | grep -qx h=x || { echo "$kind: no header"; return 1; }
  done
}

idempotent() {
  seq 5000 >"$dir/in"
  write -t kcat-idempotent -X enable.idempotence=true -l "$dir/in" || return 1
  cat_ -C -q -t kcat-idempotent -o beginning -e >"$dir/out" && cmp "$dir/in" "$dir/out"
}

transaction() {
  seq 100 >"$dir/in"
  write -t kcat-txn -X transactional.id=kcat -l "$dir/in" || return 1
  cat_ -C -q -t kcat-txn -o beginning -e -X isolation.level=read_committed >"$dir/out" && cmp "$dir/in" "$dir/out"
}

seeks() {
  seq 0 999 >"$dir/in"
  write -t kcat-seek -l "$dir/in" || return 1
  cat_ -C -q -t kcat-seek -p 0 -o 600 -e >"$dir/out" && cmp <(seq 600 999) "$dir/out" || return 1
  cat_ -C -q -t kcat-seek -p 0 -o -10 -e >"$dir/out" && cmp <(seq 990 999) "$dir/out" || return 1
  cat_ -C -q -t kcat-seek -p 0 -o "s@$(date -d '1 hour ago' +%s000)" -e >"$dir/out" && cmp "$dir/in" "$dir/out" || return 1
  cat_ -Q -t kcat-seek:0:-1 | grep -q 'offset 1000' || { echo "the end is not at 1000"; return 1; }
  cat_ -L -t kcat-seek | grep -q '1 partitions' || { echo "the topic is not described"; return 1; }
}

# One reads until it is killed, another goes on where the first one had committed.
group() {
  local options=(-X session.timeout.ms=6000 -X heartbeat.interval.ms=500 -X auto.commit.interval.ms=200 -X auto.offset.reset=earliest "$@")
  local name=kcat-group-${#options[@]}
  seq 1000 >"$dir/in"
  write -t "$name" -l "$dir/in" || return 1
  kcat -b "$address" -q -u "${options[@]}" -G "$name" "$name" >"$dir/first" 2>"$dir/errors" &
  members+=($!)
  until_ "the first member reads" eval "[ \$(wc -l <'$dir/first') -ge 1000 ]" || { cat "$dir/errors"; return 1; }
  # Its timer for commits is not exact.
  sleep 6
  kill -9 "${members[-1]}"
  seq 1001 2000 >"$dir/more"
  write -t "$name" -l "$dir/more" || return 1
  kcat -b "$address" -q -u "${options[@]}" -G "$name" "$name" >"$dir/second" 2>"$dir/errors" &
  members+=($!)
  until_ "the second member goes on" eval "[ \$(wc -l <'$dir/second') -ge 1000 ]" || { cat "$dir/errors"; return 1; }
  same "$dir/second" "$dir/more"
}
classic() { group; }

check "produce and consume with keys and headers, compression none, gzip, snappy, lz4, zstd" compressed
check "produce, idempotent" idempotent
check "produce in a transaction, read_committed" transaction
check "seek: to an offset, from the end, by time; offsets and topics described" seeks
check "group: a member is killed, another goes on where it had committed" classic
