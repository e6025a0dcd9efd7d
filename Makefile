# The developer's menu. `make` alone shows it. Every target does the set-up it needs, once.

VENV   := .venv
BIN    := $(VENV)/bin
PYTEST := $(BIN)/pytest
HOT    := $(shell find src -name '_hot*.py')
SHARED := $(shell find src -name '*.pxd')
MODE   := $(if $(filter 1,$(BASCULE_PURE)),pure,compiled)

# Where `make demo` leaves its Parquet files and its picture.
OUTPUT ?= demo-output
# Rounds of `make torture` and `make power`; seconds of `make torture`, and for each target of
# `make fuzz`; their seed, which a run prints.
ROUNDS  ?= 20
POWER_ROUNDS ?= 10000
# Size of a payload of `make torture-payloads`.
MIB ?= 256
SECONDS ?= 60
SEED    ?=
# Test processes at once; 0: the one of pytest. Files stay whole where tests share servers
# (--dist loadfile), and those that take long begin first (tests/support/slow_first.py).
WORKERS ?= 2
# Of tests with real servers, which wait half of their time.
SERVER_WORKERS ?= $(shell echo $$((2 * $(WORKERS))))
# Of tests on Spark: each has a Spark of its own, with 1 GB of heap.
SPARK_WORKERS ?= $(shell echo $$((3 * $(WORKERS) / 2)))
# Folders with tests of tier 3 that `make test` runs; a test compares them with the marks.
TIER3 := tests/backup tests/e2e tests/interop tests/torture
# Seeds of `make sim`, FIRST-LAST, and how many run at once.
SEEDS   ?= 0-999
CLUSTER_SEEDS ?= 0-99
WIDE_SEEDS ?= 0-49
JOBS    ?= 2

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# Tests start hundreds of processes. Without the bytecode that the first of them leaves, each one
# compiles all of src again: 1.6 s of a core for a start of `bascule serve`, not 1.1 s.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help
help: ## this menu
	@printf 'Bascule: durable streams on NATS subjects\n\n'
	@if [ -t 1 ]; then bold='\033[1m' plain='\033[0m'; fi; \
	awk -F ':.*## ' -v bold="$$bold" -v plain="$$plain" \
		'/^[a-z-]+:.*## / {printf "  %smake %-13s%s %s\n", bold, $$1, plain, $$2}' $(MAKEFILE_LIST)
	@printf '\nBASCULE_PURE=1 leaves the compiled parts out. PYTHON=python3.13 picks the Python of a new .venv.\n'

# -- set-up -----------------------------------------------------------------------------------

.PHONY: setup
setup: $(VENV)/.installed $(VENV)/.system build ## everything a clone needs: .venv, pinned packages, compiled parts, Java

$(VENV)/.created: tools/setup.sh
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || tools/setup.sh venv $(VENV)
	@touch $@

$(VENV)/.packages: requirements.lock | $(VENV)/.created
	@tools/setup.sh packages $(VENV)
	@touch $@

$(VENV)/.installed: pyproject.toml setup.py $(VENV)/.packages
	@echo "installing bascule itself, editable"
	@BASCULE_PURE=1 $(BIN)/pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps -e .
	@$(BIN)/pip check >/dev/null
	@echo "installed in $(VENV); this puts bascule on the PATH:  . $(VENV)/bin/activate"
	@touch $@

$(VENV)/.system: tools/setup.sh | $(VENV)/.created
	@tools/setup.sh system $(VENV)
	@touch $@

.PHONY: lock
lock: $(VENV)/.installed ## write requirements.lock anew from pyproject.toml; UPGRADE=1 takes newer versions
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --extra dev \
		--no-emit-index-url --custom-compile-command "make lock" $(if $(UPGRADE),--upgrade) \
		pyproject.toml --output-file requirements.lock

.PHONY: build
build: build/.$(MODE) ## compile the hot modules that changed

build/.compiled: $(HOT) $(SHARED) setup.py $(VENV)/.installed
	@mkdir -p build && rm -f build/.pure
	@$(BIN)/python setup.py -q build_ext --inplace
	@touch $@

build/.pure: $(VENV)/.installed
	@mkdir -p build && rm -f build/.compiled && find src -name '_hot*.so' -delete
	@touch $@

# -- checks -----------------------------------------------------------------------------------

.PHONY: check check-style check-types check-floors check-tidy
check: check-style check-types check-tidy check-floors docs ## lint, format, types, floors, house rules, the docs site; -j2 two at a time

check-style: $(VENV)/.installed
	$(BIN)/ruff check
	$(BIN)/ruff format --check

check-types: $(VENV)/.installed
	$(BIN)/mypy
	$(BIN)/mypy --config-file tests/mypy.ini

check-floors: $(VENV)/.installed
	$(BIN)/lint-imports

check-tidy: $(VENV)/.installed build
	$(PYTEST) -q tests/tidy

.PHONY: test
test: setup ## every test but those on Spark and with clients in other languages, real servers and clients included; WORKERS=2 processes, SERVER_WORKERS=4 with servers
	$(PYTEST) -n $(WORKERS) --dist worksteal --durations=25 -m "not tier3 and not long" --ignore=tests/spark
	tools/test_servers.sh $(PYTEST) -n $(SERVER_WORKERS) --dist loadfile --no-loadscope-reorder --durations=25 -m "tier3 and not long" $(TIER3)

FOREIGN_SPARK := build/foreign-spark/.installed

$(FOREIGN_SPARK): tests/support/foreign_spark.txt | $(VENV)/.installed
	@echo "installing the Spark that Iceberg and Delta have jars for, for tests of foreign tables (450 MB)"
	@rm -rf $(@D)
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-compile --target $(@D) -r $<
	@touch $@

.PHONY: foreign-spark
foreign-spark: $(FOREIGN_SPARK) ## another Spark, with jars of Iceberg and Delta, for the tests of foreign tables

SPARK_CLASSES := build/spark-classes/.written

# A JVM maps them; otherwise each start of Spark loads and verifies them again.
$(SPARK_CLASSES): tests/support/spark_java.py $(VENV)/.packages $(VENV)/.system | $(VENV)/.installed build
	@echo "writing the archive of Spark's classes, for the Sparks of the tests (200 MB)"
	@rm -rf $(@D) && mkdir -p $(@D)
	@PYTHONPATH=tests $(BIN)/python -m support.spark_java >$(@D)/log 2>&1 || \
		{ tail -n 5 $(@D)/log; echo "no archive: each Spark of the tests starts more slowly"; }
	@touch $@

.PHONY: spark-classes
spark-classes: $(SPARK_CLASSES) ## an archive of Spark's classes: the Sparks of the tests start with half of the work

.PHONY: test-spark
test-spark: setup $(SPARK_CLASSES) ## source, sink, pipelines, examples, notebook and cluster on real Spark; SPARK_WORKERS=3 processes
	tools/test_servers.sh $(PYTEST) -n $(SPARK_WORKERS) --dist loadfile --no-loadscope-reorder --durations=25 -m "not long" tests/spark

.PHONY: test-long
test-long: setup $(FOREIGN_SPARK) ## tests with the mark long, which .ci/run leaves out: what takes minutes, most of it on Spark
	$(PYTEST) -n $(WORKERS) --dist loadfile --durations=25 -m long tests

FOREIGN := tests/foreign
NATS_CLI := github.com/nats-io/natscli/nats@v0.5.0
FOREIGN_CLIENTS := build/foreign-clients/.installed

$(FOREIGN_CLIENTS): $(wildcard $(FOREIGN)/node/* $(FOREIGN)/go/* $(FOREIGN)/go/*/* $(FOREIGN)/java/*)
	@echo "installing Kafka and NATS clients for Node.js, Go and Java (200 MB, 3 minutes or more; needs node 20, go, java 17, mvn)"
	@rm -rf $(@D) && mkdir -p $(@D)/node && cp $(FOREIGN)/node/* $(@D)/node
	@cd $(@D)/node && npm ci --silent --no-audit --no-fund
	@cd $(FOREIGN)/go && go build -o $(abspath $(@D))/member . && go build -o $(abspath $(@D))/keyvalue ./keyvalue
	@GOBIN=$(abspath $(@D)) go install $(NATS_CLI)
	@mvn -q -B -f $(FOREIGN)/java/pom.xml dependency:copy-dependencies -DincludeScope=runtime \
		-DoutputDirectory=$(abspath $(@D))/jars
	@javac -d $(@D)/classes -cp '$(@D)/jars/*' $(FOREIGN)/java/GroupMember.java
	@touch $@

.PHONY: foreign-clients
foreign-clients: $(FOREIGN_CLIENTS) ## Kafka clients for Node.js, Go and Java and NATS clients for Go, for tests/foreign

.PHONY: test-clients
test-clients: setup $(FOREIGN_CLIENTS) ## groups, tools and key-value buckets with clients in other languages, on one node and in a cluster; WORKERS=2 processes
	$(PYTEST) -n $(WORKERS) --dist worksteal --durations=25 $(FOREIGN)

.PHONY: coverage
coverage: setup ## lines of src that tiers 1 and 2 run, with the processes they start; build/coverage/index.html
	$(PYTEST) -q -n $(WORKERS) --dist worksteal -m "not tier3" --ignore=tests/spark --ignore=tests/tidy \
		--timeout=3000 --cov --cov-report=term:skip-covered --cov-report=html:build/coverage

.PHONY: docs
docs: $(VENV)/.installed ## the docs site, in build/site; a broken link fails
	$(BIN)/python tools/docs_site.py
	$(BIN)/mkdocs build --quiet --strict

.PHONY: wheel
wheel: $(VENV)/.installed ## sdist and wheel of this platform, in dist, tried in a fresh environment
	rm -rf dist && $(BIN)/python -m build --quiet
	tools/try_wheel.sh dist

.PHONY: hooks
hooks: $(VENV)/.installed ## run lint, format, types and house rules before each commit
	$(BIN)/pre-commit install

.PHONY: test-fast
test-fast: $(VENV)/.installed build ## tier 1: no socket, no sleep, under a minute
	$(PYTEST) -n $(WORKERS) --dist worksteal -m "not tier2 and not tier3"

# -- things to watch --------------------------------------------------------------------------

.PHONY: demo
demo: setup ## 336,776 real flights: NATS -> log -> Kafka client -> Spark -> Parquet and a picture
	$(BIN)/bascule demo --output $(OUTPUT)

.PHONY: bench
bench: setup ## the figures, as ratios within one run; results go to bench/results
	$(BIN)/python -m bench

.PHONY: torture
torture: setup ## five nodes under drawn faults for SECONDS=60, every ack checked; VERSIONS=1 rolls two releases; kill -9 ROUNDS=20 times; damage in every byte
	cd tests && ../$(BIN)/python -m torture --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) $(if $(FAULTS),--faults $(FAULTS)) $(if $(VERSIONS),--versions) $(if $(OUT),--out $(abspath $(OUT)))
	$(PYTEST) -q -s --timeout=0 --rounds=$(ROUNDS) --seed=$(strip $(or $(SEED),$(shell od -An -N3 -tu4 /dev/urandom))) \
		tests/e2e/test_torture.py tests/e2e/test_raft_cluster.py tests/e2e/test_cluster_chaos.py \
		tests/e2e/test_raft_store_kill.py tests/e2e/test_table_oplog_kill.py
	$(PYTEST) -q --timeout=0 --torture tests/storage/test_any_byte.py tests/torture

.PHONY: torture-spark
torture-spark: setup ## kill driver and executors of the archive and the sink, ROUNDS=20 times each
	$(PYTEST) -q -s --timeout=0 --rounds=$(ROUNDS) --seed=$(strip $(or $(SEED),$(shell od -An -N3 -tu4 /dev/urandom))) \
		tests/spark/test_archive_torture.py tests/spark/test_sink_torture.py

.PHONY: torture-payloads
torture-payloads: setup ## kill -9 of primary, successor, last node and leader in mid-stream of payloads of MIB=256, ROUNDS=20 times
	$(PYTEST) -q -s --timeout=0 --rounds=$(ROUNDS) --payload-mib=$(MIB) --seed=$(strip $(or $(SEED),$(shell od -An -N3 -tu4 /dev/urandom))) \
		tests/e2e/test_payload_kills.py

.PHONY: power
power: $(VENV)/.installed build ## power loss on the crashable disk, POWER_ROUNDS=10000 rounds from SEED on
	BASCULE_POWER_ROUNDS=$(POWER_ROUNDS) BASCULE_POWER_SEED=$(or $(SEED),0) \
		$(PYTEST) -q -x tests/sim/test_power_loss.py

.PHONY: sim
sim: $(VENV)/.installed build ## the Raft group, then whole nodes, under drawn faults: SEEDS=0-999, CLUSTER_SEEDS=0-99, WIDE_SEEDS=0-49 (JOBS=2 at once)
	$(BIN)/python -m bascule.sim raft --seeds $(SEEDS) --jobs $(JOBS)
	$(BIN)/python -m bascule.sim cluster --seeds $(CLUSTER_SEEDS) --jobs $(JOBS)
	$(BIN)/python -m bascule.sim cluster --wide --seeds $(WIDE_SEEDS) --jobs $(JOBS)

.PHONY: mutants
mutants: $(VENV)/.installed build ## search for seeds that find the simulators' mutants soon, for tests/sim/mutant_seeds.json (JOBS=2 at once)
	cd tests && ../$(BIN)/python -m support.mutant_seeds --jobs $(JOBS)

.PHONY: fuzz
fuzz: $(VENV)/.installed build ## hostile bytes for SECONDS=60 a target; property tests with many more examples
	cd tests && ../$(BIN)/python -m fuzz --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))
	$(PYTEST) -q -m "not tier3" --hypothesis-profile=exhaustive $(if $(SEED),--hypothesis-seed=$(SEED))

.PHONY: clean
clean: ## remove everything that was built, .venv too
	rm -rf $(VENV) build dist demo-output *.egg-info src/*.egg-info
	find src -name '_hot*.so' -delete
	rm -rf .nox .coverage* .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
