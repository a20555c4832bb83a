# What there is to do with this repository. `make` alone lists it.

CARGO ?= cargo
# `make bench PEERS=kafka`, `make bench ARGS="--rounds 3"`, `make demo ARGS=…`, `make fuzz TARGET=frame SECONDS=60`
ARGS ?=
# What `make bench` measures beside KerA: any of kafka, kafka-java, nats, redis; `all`; or nothing.
PEERS ?= all
TARGET ?=
SECONDS ?= 60

.DEFAULT_GOAL := help
.PHONY: help build test check-fmt fmt lint unit tidy deny demo bench bench-cluster bench-diff bench-peers kafka-compat fuzz docs clean

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

bench: build ## the papers' experiments, KerA and its peers in turns, about ten minutes: a report with plots
	$(CARGO) build --release --locked -p kera-bench --bin kera-bench
	rm -rf results/quick-tour
	./target/release/kera-bench run tour --quick $(if $(PEERS),--peer $(PEERS)) --out results/quick-tour $(ARGS)
	./target/release/kera-bench report results/quick-tour

bench-cluster: build ## three nodes with up to three copies, KerA and Kafka in turns: a report with plots
	$(CARGO) build --release --locked -p kera-bench --bin kera-bench
	rm -rf results/cluster
	./target/release/kera-bench run cluster --quick --peer kafka,kafka-java --out results/cluster $(ARGS)
	./target/release/kera-bench report results/cluster

bench-diff: ## did the last `make bench` lose ground against docs/performance/ratios.json? (status 3 if so)
	./target/release/kera-bench diff results/quick-tour

bench-peers: ## fetches and builds what `make bench` measures beside KerA, from package registries only
	-peers/kafka/kafka.sh fetch
	-peers/kafka/kafka.sh load-build
	-$(CARGO) build --release --manifest-path peers/rdkafka-bench/Cargo.toml
	-peers/redis/redis.sh fetch
	-peers/redis/redis.sh build
	-peers/nats/nats.sh fetch

kafka-compat: build ## Kafka clients of all languages against a node; the table in docs/kafka-compatibility.md
	peers/kafka-clients/check.sh ./target/release/kera

fuzz: ## broken bytes for everything that parses them: TARGET=name SECONDS=60 (needs cargo-fuzz, nightly)
	@if [ -z "$(TARGET)" ]; then $(CARGO) +nightly fuzz list; echo "choose one: make fuzz TARGET=name SECONDS=60"; \
	else $(CARGO) +nightly fuzz run $(TARGET) -- -max_total_time=$(SECONDS); fi

docs: ## documentation of all crates: target/doc/kera/index.html
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --locked

clean: ## removes what builds have made
	$(CARGO) clean
