#!/usr/bin/env bash
# One Apache Kafka broker on loopback, as a peer to measure against.
#
#   kafka.sh fetch                      jars from Maven Central, once, into $KERA_PEERS/kafka/lib
#   kafka.sh start [name=value ...]     format a data directory and start; extra broker settings follow
#   kafka.sh pid | bootstrap            of the broker that start started
#   kafka.sh stop                       stop it and delete its data
#   kafka.sh topic NAME PARTITIONS      create a topic
#   kafka.sh load-build                 compile Load.java, a load generator with Kafka's own clients
#   kafka.sh load produce|consume|both|delete [--flag value ...]      the flags and the output of rdkafka-bench
#   kafka.sh tool CLASS [ARGUMENT ...]  any class of Kafka's tools
#
# Several brokers form a cluster when they are started with the same KAFKA_CLUSTER_ID, each with a port of its own and these settings:
#   KAFKA_PORT=19092 kafka.sh start offsets.topic.replication.factor=3
#   KAFKA_PORT=19102 kafka.sh start node.id=2 process.roles=broker listeners=PLAINTEXT://127.0.0.1:19102 \
#     controller.quorum.voters=1@127.0.0.1:19093
#
# Environment: KERA_PEERS (default ~/.cache/kera-peers) holds everything and is safe to delete after stop;
# KAFKA_PORT (19092), the controller takes the next one; KAFKA_HEAP (1500m).
set -euo pipefail

script_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=${KERA_PEERS:-${XDG_CACHE_HOME:-$HOME/.cache}/kera-peers}/kafka
port=${KAFKA_PORT:-19092}
bootstrap=127.0.0.1:$port
run_dir=$root/run-$port
logging=-Dlog4j2.configurationFile=$root/log4j2.properties

fail() { echo "kafka.sh: $*" >&2; exit 1; }

java_class() { # heap, class, arguments
  local heap=$1
  shift
  java "-Xmx$heap" -XX:+UseG1GC "$logging" -cp "$root/lib/*" "$@"
}

fetch() {
  command -v java > /dev/null || fail "java is missing; Kafka needs version 17 or later (Debian: apt-get install openjdk-17-jre-headless)"
  mkdir -p "$root"
  # The folder appears under its name only when it is complete, so that a broken download is not taken for a good one.
  if [ ! -d "$root/lib" ]; then
    command -v mvn > /dev/null || fail "mvn is missing; it fetches the jars (Debian: apt-get install maven)"
    rm -rf "$root/lib.part"
    mvn --quiet --batch-mode --file "$script_dir/pom.xml" dependency:copy-dependencies "-DoutputDirectory=$root/lib.part" >&2
    mv "$root/lib.part" "$root/lib"
  fi
  printf '%s\n' 'status = error' 'appender.err.type = Console' 'appender.err.name = err' \
    'appender.err.target = SYSTEM_ERR' 'appender.err.layout.type = PatternLayout' \
    'appender.err.layout.pattern = %d{ISO8601} %-5p %c{1} %m%n' 'rootLogger.level = warn' \
    'rootLogger.appenderRef.err.ref = err' > "$root/log4j2.properties"
}

broker_settings() { # extra settings as name=value
  cat <<SETTINGS
node.id=1
process.roles=controller,broker
listeners=PLAINTEXT://$bootstrap,CONTROLLER://127.0.0.1:$((port + 1))
controller.quorum.voters=1@127.0.0.1:$((port + 1))
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs=$run_dir/data
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
num.network.threads=3
num.io.threads=8
SETTINGS
  local setting
  for setting in "$@"; do echo "$setting"; done
}

is_running() { [ -e "$run_dir/pid" ] && kill -0 "$(cat "$run_dir/pid")" 2> /dev/null; }

# The broker is ready when it answers on its port and its controller has elected itself: the broker prints nothing
# at level warn, so a tool asks.
answers() { java_class 128m org.apache.kafka.tools.TopicCommand --bootstrap-server "$bootstrap" --list > /dev/null 2>&1; }

start() {
  fetch
  if is_running; then fail "a broker runs already (process $(cat "$run_dir/pid")); stop it first"; fi
  rm -rf "$run_dir"
  mkdir -p "$run_dir"
  broker_settings "$@" > "$run_dir/server.properties"
  local cluster_id=${KAFKA_CLUSTER_ID:-$(head -c 16 /dev/urandom | base64 | tr '+/' 'ab' | cut -c1-22)}
  java_class 256m kafka.tools.StorageTool format --cluster-id "$cluster_id" \
    --config "$run_dir/server.properties" > "$run_dir/format.log" 2>&1 || fail "cannot format $run_dir/data, see $run_dir/format.log"
  local heap=${KAFKA_HEAP:-1500m}
  setsid java "-Xms$heap" "-Xmx$heap" -XX:+UseG1GC -XX:MaxGCPauseMillis=20 "$logging" -cp "$root/lib/*" \
    kafka.Kafka "$run_dir/server.properties" > "$run_dir/broker.log" 2>&1 < /dev/null &
  echo $! > "$run_dir/pid"
  local try
  for try in $(seq 60); do
    is_running || fail "the broker ended on its own, see $run_dir/broker.log"
    if (exec 3<> "/dev/tcp/127.0.0.1/$port") 2> /dev/null && answers; then
      echo "$bootstrap"
      return
    fi
    sleep 0.5
  done
  fail "no answer on $bootstrap after $try tries, see $run_dir/broker.log"
}

stop() {
  if is_running; then
    local pid try
    pid=$(cat "$run_dir/pid")
    kill "$pid"
    for try in $(seq 60); do
      kill -0 "$pid" 2> /dev/null || break
      [ "$try" -lt 60 ] || kill -9 "$pid"
      sleep 0.25
    done
  fi
  rm -rf "$run_dir"
}

load_build() {
  [ "$root/load/Load.class" -nt "$script_dir/Load.java" ] && return
  command -v javac > /dev/null || fail "javac is missing; it compiles Load.java (Debian: apt-get install openjdk-17-jdk-headless)"
  javac -cp "$root/lib/*" -d "$root/load" "$script_dir/Load.java"
}

command=${1:-help}
[ $# -eq 0 ] || shift
case $command in
  fetch) fetch ;;
  start) start "$@" ;;
  stop) stop ;;
  pid) is_running || fail "no broker runs"; cat "$run_dir/pid" ;;
  bootstrap) echo "$bootstrap" ;;
  topic)
    java_class 256m org.apache.kafka.tools.TopicCommand --bootstrap-server "$bootstrap" --create --topic "$1" \
      --partitions "$2" --replication-factor 1 ;;
  load-build) load_build ;;
  load)
    exec java -Xms1g -Xmx1g -XX:+UseG1GC "$logging" -cp "$root/load:$root/lib/*" Load "$@" ;;
  tool) java_class 1g "$@" ;;
  *) sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; [ "$command" = help ] || exit 2 ;;
esac
