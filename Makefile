# What there is to do with this repository. `make` alone lists it.

CARGO ?= cargo
# `make bench PEERS=kafka`, `make bench ARGS="--rounds 3"`, `make demo ARGS=…`, `make fuzz TARGET=frame SECONDS=60`
ARGS ?=
# What `make bench` measures beside KerA: any of kafka, kafka-java, nats, redis, with commas between; `all`; or nothing.
PEERS ?= all
comma := ,
PEER_NAMES = $(subst $(comma), ,$(PEERS))
# Minutes that `make bench` and `make bench-cluster` keep to, behind the build.
MINUTES ?= 10
CLUSTER_MINUTES ?= 30
# Folders of results that are compared and kept.
RESULTS ?= $(wildcard results/quick-tour results/cluster)
# Where results are kept: clusters in a folder of their own.
kept = $$(case $(1) in */cluster) echo docs/performance/cluster ;; *) echo docs/performance ;; esac)
TARGET ?=
SECONDS ?= 60

.DEFAULT_GOAL := help
.PHONY: help build test check-fmt fmt lint unit tidy deny demo bench bench-cluster bench-diff bench-record bench-peers kafka-compat fuzz docs clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## the kera binary, optimised: target/release/kera
	$(CARGO) build --release --locked -p kera

test: check-fmt lint unit deny ## everything that has to hold

unit: ## tests of all crates, and the rules of the house (a test of xtask)
	$(CARGO) test --workspace --locked

check-fmt: ## whether `make fmt` would change anything
	@if $(CARGO) fmt --version >/dev/null 2>&1; then $(CARGO) fmt --all -- --check; \
	else echo "rustfmt is not installed: layout is not checked (rustup component add rustfmt)"; fi

fmt: ## puts the layout of the code right
	$(CARGO) fmt --all

lint: ## clippy, warnings are errors
	@if $(CARGO) clippy --version >/dev/null 2>&1; then \
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings; \
	else echo "clippy is not installed: lints are not checked (rustup component add clippy)"; fi

tidy: ## only the rules of the house: dependencies, lengths, side doors, quoted paths
	$(CARGO) xtask tidy

deny: ## licences, sources and doubles of dependencies, offline, if cargo-deny is installed (advisories: cargo deny check advisories)
	@if $(CARGO) deny --version >/dev/null 2>&1; then $(CARGO) deny --offline check bans licenses sources; \
	else echo "cargo-deny is not installed: dependencies are not checked (cargo install cargo-deny --locked)"; fi

demo: build ## a node, real data streamed through it, shown live
	./target/release/kera demo $(ARGS)

bench: build $(if $(PEERS),bench-peers) ## the papers' experiments, KerA and its peers in turns, MINUTES behind the build (10): a report with plots
	$(CARGO) build --release --locked -p kera-bench --bin kera-bench
	rm -rf results/quick-tour
	@./target/release/kera-bench run tour --quick --minutes $(MINUTES) $(if $(PEERS),--peer $(PEERS)) --out results/quick-tour $(ARGS); \
	status=$$?; ./target/release/kera-bench report results/quick-tour && exit $$status

bench-cluster: build bench-peers ## three nodes with up to three copies, KerA and Kafka in turns, CLUSTER_MINUTES (30): a report with plots
	$(CARGO) build --release --locked -p kera-bench --bin kera-bench
	rm -rf results/cluster
	@./target/release/kera-bench run cluster --quick --minutes $(CLUSTER_MINUTES) --peer kafka,kafka-java --out results/cluster $(ARGS); \
	status=$$?; ./target/release/kera-bench report results/cluster && exit $$status

bench-diff: ## did the last `make bench` and `bench-cluster` (or RESULTS) lose ground against what is kept? (status 3 if so)
	@status=0; for results in $(or $(RESULTS),results/quick-tour); do echo "$$results:"; \
	./target/release/kera-bench diff $$results --recorded $(call kept,$$results)/ratios.json || status=$$?; done; exit $$status

bench-record: ## keeps the last `make bench` and `bench-cluster` (or RESULTS) in docs/performance: ratios.json, report.md, plots
	@set -e; for results in $(RESULTS); do kept=$(call kept,$$results); mkdir -p $$kept; \
	./target/release/kera-bench record $$results --out $$kept/ratios.json; \
	./target/release/kera-bench report $$results --out $$kept; rm $$kept/report.html; done

bench-peers: ## fetches and builds what is measured beside KerA (PEERS), from package registries only
	@for peer in $(if $(filter all,$(PEER_NAMES)),kafka kafka-java nats redis,$(PEER_NAMES)); do case $$peer in \
	kafka) peers/kafka/kafka.sh fetch && $(CARGO) build --quiet --release --manifest-path peers/rdkafka-bench/Cargo.toml --target-dir peers/rdkafka-bench/target ;; \
	kafka-java) peers/kafka/kafka.sh fetch && peers/kafka/kafka.sh load-build ;; \
	nats) peers/nats/nats.sh fetch > /dev/null ;; \
	redis) peers/redis/redis.sh fetch > /dev/null && peers/redis/redis.sh build ;; \
	esac || echo "$$peer cannot be had here: it is left out"; done

kafka-compat: build ## Kafka clients of all languages against a node; the table in docs/kafka-compatibility.md
	peers/kafka-clients/check.sh ./target/release/kera

fuzz: ## broken bytes for everything that parses them: TARGET=name SECONDS=60 (needs cargo-fuzz, nightly)
	@if [ -z "$(TARGET)" ]; then $(CARGO) +nightly fuzz list; echo "choose one: make fuzz TARGET=name SECONDS=60"; \
	else $(CARGO) +nightly fuzz run $(TARGET) -- -max_total_time=$(SECONDS); fi

docs: ## documentation of all crates: target/doc/kera/index.html
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --locked

clean: ## removes what builds have made
	$(CARGO) clean
