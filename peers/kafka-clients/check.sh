#!/usr/bin/env bash
# Runs Kafka clients against a node of its own and writes what came of it into docs/kafka-compatibility.md.
# usage: peers/kafka-clients/check.sh [path of the kera binary] [words of the checks that are wanted: only their rows are written]
#
# Ends with 1 if a check fails. Clients of Python are always run. Those of other languages are built and run if their tools are
# on the machine, kcat and Kafka's tools (peers/kafka/kafka.sh fetch) if they are. What is fetched is named in lock files.
# KERA_CLIENTS_DIR (default target/kafka-clients) holds what is fetched and built.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
kera=${1:-$root/target/release/kera}
built=${KERA_CLIENTS_DIR:-$root/target/kafka-clients}
mkdir -p "$built"

if ! cmp -s "$here/requirements.txt" "$built/python/installed.txt"; then
  python3 -m venv "$built/python"
  "$built/python/bin/pip" install -q -r "$here/requirements.txt"
  cp "$here/requirements.txt" "$built/python/installed.txt"
fi

KERA_CLIENTS=
client() { KERA_CLIENTS+="$*"$'\n'; }
has() {
  if command -v "$1" >/dev/null; then return; fi
  echo "$1 is not installed: $2 is not tried"
  return 1
}
if has kcat kcat; then client "$here/kcat.sh"; fi
if has go franz-go; then
  (cd "$here/franz-go" && go build -o "$built/franz-go" .)
  client "$built/franz-go"
fi
if has go Sarama; then
  (cd "$here/sarama" && go build -o "$built/sarama" . && go build -modfile=older.mod -o "$built/sarama-older" .)
  client "$built/sarama"
  client "$built/sarama-older"
fi
if has npm KafkaJS; then
  mkdir -p "$built/kafkajs"
  cp "$here"/kafkajs/* "$built/kafkajs/"
  (cd "$built/kafkajs" && npm ci --silent --ignore-scripts --no-audit --no-fund)
  client node "$built/kafkajs/check.js"
fi
if has cargo rdkafka && has make rdkafka; then
  cargo build -q --locked --manifest-path "$here/rdkafka/Cargo.toml" --target-dir "$built/rdkafka"
  client "$built/rdkafka/debug/rdkafka-check"
fi
if has npm kafka-javascript && has make kafka-javascript; then
  # Its binary is not in the registry, its source is: that is built, in about three minutes, against the libraries of the machine.
  mkdir -p "$built/kafka-javascript"
  cp "$here"/kafka-javascript/* "$built/kafka-javascript/"
  module=$built/kafka-javascript/node_modules/@confluentinc/kafka-javascript
  if [ ! -e "$module/build/Release/confluent-kafka-javascript.node" ]; then
    (cd "$built/kafka-javascript" && npm ci --silent --ignore-scripts --no-audit --no-fund)
    (cd "$module" && export CKJS_LINKING=dynamic && npm run configure && npm run build) >"$built/kafka-javascript/build.log" 2>&1 ||
      echo "kafka-javascript is not built, see $built/kafka-javascript/build.log: it is not tried"
  fi
  if [ -e "$module/build/Release/confluent-kafka-javascript.node" ]; then client node "$built/kafka-javascript/check.js"; fi
fi
has java "Kafka's own tools" || true
if has javac "Kafka's Java client" && has mvn "Kafka's Java client"; then
  # The release of Samza, the one of Flink's connector, and one of today.
  for release in 2.4.1 3.9.1 4.2.0; do
    place=$built/java/$release
    if [ ! -d "$place/lib" ]; then
      rm -rf "$place"
      mvn --quiet --batch-mode --file "$here/java/pom.xml" "-Dkafka.version=$release" dependency:copy-dependencies \
        "-DoutputDirectory=$place/part"
      mv "$place/part" "$place/lib"
    fi
    javac -cp "$place/lib/*" -d "$place/classes" "$here/java/Check.java"
    client java -Xmx256m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -cp "$place/classes:$place/lib/*" Check
  done
fi
if [ -d "${KERA_PEERS:-${XDG_CACHE_HOME:-$HOME/.cache}/kera-peers}/kafka/lib" ] && has mvn MirrorMaker; then
  client "$built/python/bin/python" "$here/mirrormaker/check.py"
fi
export KERA_CLIENTS

# shellcheck source=/dev/null
. "$here/node.sh"
start_node "$kera"
"$built/python/bin/python" "$here/check.py" "$address" "$root/docs/kafka-compatibility.md" "${2:-}"
