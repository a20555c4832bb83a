#!/usr/bin/env bash
# Runs kafka-python's integration tests, from its source distribution, against a node.
#
#   kafka-python-tests.sh KERA [argument of pytest ...]
#
# Its distribution lacks what starts brokers of its own: a stand-in that knows only the node takes its place, and tests that
# want a broker with TLS or SASL end with an error or are skipped.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
kera=${1:-$root/target/release/kera}
shift || true
built=${KERA_CLIENTS_DIR:-$root/target/kafka-clients}
release=$(sed -n 's/^kafka-python==//p' "$here/requirements.txt")
source=$built/kafka_python-$release
mkdir -p "$built"

if [ ! -x "$built/kafka-python-tests/bin/python" ]; then
  python3 -m venv "$built/kafka-python-tests"
  "$built/kafka-python-tests/bin/pip" install -q -r "$here/kafka-python-tests.txt" "kafka-python==$release"
fi
if [ ! -d "$source" ]; then
  "$built/kafka-python-tests/bin/pip" download -q --no-deps --no-binary :all: -d "$built" "kafka-python==$release"
  tar -xzf "$source.tar.gz" -C "$built"
fi
touch "$source/test/__init__.py"
mkdir -p "$source/servers/4.1.0/kafka-bin"
cat >"$source/test/service.py" <<'PYTHON'
class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port

    def start(self):
        pass

    def stop(self):
        pass

    def dump_logs(self):
        pass

    def wait_for(self, pattern, timeout=30):
        return True


class SpawnedService:
    def __init__(self, args, env):
        raise RuntimeError("there is only the node")
PYTHON

# shellcheck source=/dev/null
. "$here/node.sh"
start_node "$kera" --kafka-partitions 4
cd "$source"
KAFKA_URI=kafka://$address KAFKA_VERSION=4.1.0 "$built/kafka-python-tests/bin/python" -m pytest -q --tb=line --timeout=60 \
  test/integration "$@"
