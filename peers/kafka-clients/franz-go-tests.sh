#!/usr/bin/env bash
# Runs the tests of franz-go's own client (its package kgo) against a node: those of its protocol, a chain of consumer groups
# that half a million records go through while members join and leave, and the same in transactions.
#
#   franz-go-tests.sh KERA            all of them, a part at a time
#   franz-go-tests.sh KERA chaos      the chains again, with connections that are cut every second
#   franz-go-tests.sh KERA cluster    all of them against three nodes, with three copies of everything
#   franz-go-tests.sh KERA cluster-chaos   the chains against three nodes, with connections that are cut
#   franz-go-tests.sh KERA NAME       the tests whose names match
#
# Needs Go. The source comes as a Go module, of the version in franz-go/go.mod.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
kera=${1:-$root/target/release/kera}
which=${2:-all}
built=${KERA_CLIENTS_DIR:-$root/target/kafka-clients}
mkdir -p "$built"

cd "$here/franz-go"
go mod download
source=$(go list -m -f '{{.Dir}}' github.com/twmb/franz-go)
if [ ! -d "$built/franz-go-source" ]; then
  cp -r "$source" "$built/franz-go-source.part"
  chmod -R u+w "$built/franz-go-source.part"
  mv "$built/franz-go-source.part" "$built/franz-go-source"
fi
cd "$built/franz-go-source/pkg/kgo"
go test -c -o "$built/kgo.test" .

# shellcheck source=/dev/null
. "$here/node.sh"
copies=1
if [ "${which#cluster}" != "$which" ]; then
  start_cluster "$kera"
  copies=3
else
  start_node "$kera"
fi
export KGO_SEEDS=$address KGO_TEST_RF=$copies KGO_LOG_LEVEL=none
failed=0
part() { # name, arguments of the test
  local log="$built/kgo-$1.log"
  "$built/kgo.test" -test.v -test.timeout 15m "${@:2}" >"$log" 2>&1 || failed=1
  echo "$1: $(grep -c '^--- PASS' "$log" || true) passed, $(grep -c '^--- FAIL' "$log" || true) failed, $(grep -c '^--- SKIP' "$log" || true) skipped ($log)"
  grep -E '^ *--- FAIL' "$log" || true
}
case $which in
  all)
    part protocol -test.skip '^(TestGroupETL|TestTxnEtl|TestShareGroup.*)$'
    part groups -test.run '^TestGroupETL$'
    part transactions -test.run '^TestTxnEtl$'
    ;;
  cluster)
    part cluster-protocol -test.skip '^(TestGroupETL|TestTxnEtl|TestShareGroup.*)$'
    part cluster-groups -test.run '^TestGroupETL$'
    part cluster-transactions -test.run '^TestTxnEtl$'
    ;;
  chaos | cluster-chaos)
    export KGO_TEST_CHAOS=1
    part "$which-groups" -test.run '^TestGroupETL$'
    part "$which-transactions" -test.run '^TestTxnEtl$'
    ;;
  *) part named -test.run "$which" ;;
esac
exit "$failed"
