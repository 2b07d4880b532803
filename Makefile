# Needs Python >= 3.11 and make; everything else is fetched into .venv and .tools.
# The interpreter is selected when the environment is built, unless PYTHON=... names one.
PYTHON ?= $(eval PYTHON := $$(shell scripts/fastest-python))$(PYTHON)
VENV := .venv
BIN := $(VENV)/bin
# The number of test processes: many tests wait for other processes, so four keep two cores busy.
# 0: all tests in this process, for a debugger.
WORKERS ?= 4
# At a terminal pip shows what it downloads.
PIP_QUIET := $(if $(CI),--quiet)
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

# Tests start thousands of processes, which would compile every module again.
unexport PYTHONDONTWRITEBYTECODE

# The tests that count for coverage and run without the core: the others test whole processes.
COVERED := tests/unit tests/integration

OLDER_SPARK := .tools/pyspark-4.0.1

.PHONY: help setup demo unit test spark older-spark check docs house sanitize soak cover plain chart engine bench bench-clients bench-spark clean lock

help:                     ## print this list
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:[^#]*## /\t/' | sort | expand -t 16

setup: $(VENV)/.core      ## the virtual environment, from the lock file, and the compiled core

# The lock file lists every package: with --no-deps pip resolves nothing, so new releases have no effect.
$(VENV)/.ready: requirements.lock pyproject.toml
	@test -n "$(PYTHON)"
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and f"Python 3.11 or newer is needed; {sys.executable} is {v.major}.{v.minor}. Name another one: make PYTHON=python3.12 ...")'
	@echo "Installing the packages of requirements.lock into $(VENV): 1.3 GB"
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install $(PIP_QUIET) --disable-pip-version-check --require-hashes --no-deps -r requirements.lock
	@touch $@

CORE := $(shell find remoting broker -name '*.pyx' -o -name '*.pxd')

# Without a compiler PocketMQ is installed without the core; POCKETMQ_REQUIRE_CORE=1 makes that an error.
# The folders are prerequisites, too, because removing or renaming a module changes only its folder.
$(VENV)/.core: $(VENV)/.ready setup.py $(CORE) $(sort $(dir $(CORE)))
	@find remoting broker -name '*.so' -delete
	@echo "Compiling the core: about a minute"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --config-settings editable_mode=compat -e .
	@$(BIN)/python -c 'from broker import fast_path as f; print("PocketMQ runs on its", f"Python path, which is slower: {f.WHY}" if f.WHY else "compiled core")'
	@touch $@

demo: setup               ## handle 336,776 flights in consumer groups, and in Spark if Java is installed
	$(BIN)/pocketmq demo
	$(BIN)/python -m examples.demo.group
	@if command -v java >/dev/null; then \
		echo "Spark runs next, and computes the delays of each day while it reads the flights"; \
		$(BIN)/python -m examples.demo.spark; \
	else \
		echo "Spark is left out: it needs Java"; \
	fi

# Unit tests wait for little.
unit: WORKERS = 3
unit: setup               ## the unit tests
	$(PYTEST) tests/unit

test: setup               ## the tests in their small size; the last lines list the skipped ones
	$(PYTEST)

# Tests of examples, benchmarks, tools, Apache's brokers and kills: they say nothing about Spark's interfaces.
SPARK_ONCE := pipelines test_apache.py test_bad_input.py test_benchmark.py test_exactly_once.py \
    test_lag.py test_secrets.py

# PySpark 4.0 leaves its own sockets to the garbage collector.
OLD_SOCKETS := -W ignore::pytest.PytestUnraisableExceptionWarning

spark: setup older-spark  ## the tests that start Spark, with an older PySpark and the newest
	$(PYTEST) tests/spark

older-spark: setup $(OLDER_SPARK) ## the tests of Spark's interfaces with PySpark 4.0
	PYTHONPATH=$(OLDER_SPARK) $(PYTEST) -m "not newer_spark" $(OLD_SOCKETS) tests/spark $(SPARK_ONCE:%=--ignore=tests/spark/%)

$(OLDER_SPARK): requirements-spark-4.0.lock $(VENV)/.ready
	rm -rf $@
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps --target $@ -r $<
	@touch $@

check: setup              ## format, lint, types, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/house.py --check
	$(BIN)/python scripts/hops.py --check
	$(BIN)/python scripts/stubs.py --check
	PATH=$(BIN):$$PATH cython-lint remoting broker

docs: setup               ## the documentation as a site in build/site, with every link checked
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

house: setup              ## count files, classes and functions; list import cycles, duplicate names, long functions
	$(BIN)/python scripts/house.py
	$(BIN)/python scripts/hops.py --list

# Counting takes more time than the tests themselves.
cover: setup              ## count the branches that tests take, in CI's size; there is a minimum
	CI=true $(PYTEST) --cov --cov-report= $(COVERED)
	$(BIN)/python -m coverage report --include='remoting/protocol/*' --fail-under=95
	$(BIN)/python -m coverage report --omit='remoting/protocol/*' --fail-under=85

# Tests that say nothing about running without the core: they compare both, are about tools, or run
# what has other tests: of the client and of Spark's connector the unit tests and bad_input are enough.
SAME := $(addprefix tests/,unit/broker/fast_path unit/benchmarks unit/pocketmq/faststream \
    integration/benchmarks integration/client integration/console integration/deploy \
    integration/pocketmq integration/scripts integration/spark_connector)

plain: setup              ## the tests of what differs without the compiled core, uvloop, orjson and isal
	POCKETMQ_TEST_SIZE=test POCKETMQ_PURE=1 PYTHONPATH=tests/plain $(PYTEST) -m "not interop and not slow" \
	    $(COVERED) tests/scenarios tests/docs/test_documents.py $(SAME:%=--ignore=%)

SANITIZED := build/sanitized
SANITIZERS := -fsanitize=address,undefined -fno-sanitize-recover=undefined

sanitize: setup           ## the tests of the compiled core with AddressSanitizer, UBSan and checked indices
	rm -rf $(SANITIZED) && mkdir -p $(SANITIZED)
	git ls-files -z | xargs -0 cp --parents -t $(SANITIZED)
	cd $(SANITIZED) && POCKETMQ_REQUIRE_CORE=1 POCKETMQ_CORE_CHECKS=1 \
	    POCKETMQ_CORE_FLAGS="-O1 -g -fwrapv -fno-omit-frame-pointer $(SANITIZERS)" \
	    $(CURDIR)/$(BIN)/python setup.py -q build_ext --inplace
	cd $(SANITIZED) && LD_PRELOAD="$$(cc -print-file-name=libasan.so) $$(cc -print-file-name=libubsan.so)" \
	    ASAN_OPTIONS=detect_leaks=0 PYTHONMALLOC=malloc \
	    $(CURDIR)/$(BIN)/python -m pytest -p no:cacheprovider tests/unit/broker/fast_path \
	    tests/unit/broker/filters/test_sql_records.py \
	    tests/unit/broker/store/index/test_compiled.py tests/unit/broker/store/test_stretches.py \
	    tests/unit/broker/store/verify/test_compiled_entries.py \
	    tests/unit/client/test_received.py tests/unit/remoting/protocol/message/test_batch.py

engine: setup             ## build and run the images and the compose file; needs Docker, or Podman and podman-compose
	$(BIN)/python -m pytest tests/engine

HELM := .tools/helm-3.22.0
# Of the Python package, which has Kubernetes' schemas: 108 MB.
SCHEMAS := .tools/kubernetes-validate-1.37.0

# Compiling helm takes 3 minutes of CPU: so .ci/run leaves it to a job beside it, and the tests read what helm has rendered.
chart: $(HELM) $(SCHEMAS) ## render the Helm chart, compare, validate; needs Go; UPDATE=--update renders anew
	PATH=$(HELM):$$PATH PYTHONPATH=$(SCHEMAS) $(PYTHON) -m tests.chart $(UPDATE)

$(HELM):
	GOBIN=$(CURDIR)/$@ go install helm.sh/helm/v3/cmd/helm@v3.22.0

$(SCHEMAS): tests/chart.lock
	rm -rf $@
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps --target $@ -r $<
	@touch $@

soak: setup               ## the long-running tests in full size; writes build/soak.md; TESTS=tests/... for some
	$(BIN)/python -m tests.soak $(TESTS)

bench: setup              ## compare with Apache RocketMQ: over an hour on a quiet machine; BENCH=--quick
	@mkdir -p build
	$(BIN)/python -m benchmarks --json build/bench.json --chart build/bench.svg $(BENCH)

bench-clients: setup      ## compare our client with those of Kafka and NATS: ten minutes; BENCH=--quick
	@mkdir -p build
	$(BIN)/python -m benchmarks.clients --json build/bench-clients.json $(BENCH)

bench-spark: setup        ## the Spark connector, compared with Spark's Kafka source: twenty minutes; BENCH=--quick
	@mkdir -p build
	$(BIN)/python -m benchmarks.spark --json build/bench-spark.json $(BENCH)

lock: setup               ## update the lock files
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --all-extras --group dev --python-version 3.11 --upgrade pyproject.toml -o requirements.lock
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-annotate --python-version 3.11 -c requirements.lock pyproject.toml -o requirements-runtime.lock
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-annotate --python-version 3.11 --extra console -c requirements.lock pyproject.toml -o requirements-image.lock
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-annotate --python-version 3.11 --extra spark --extra demo -c requirements.lock pyproject.toml -o requirements-spark.lock
	echo 'pyspark==4.0.1' | $(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-annotate --no-header --no-deps --python-version 3.11 - -o requirements-spark-4.0.lock
	echo 'rocketmq==0.4.4' | $(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-annotate --no-header --no-deps --python-version 3.11 - -o tests/interop/cpp/requirements.lock
	echo 'kubernetes-validate==1.37.0' | $(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-annotate --no-header --python-version 3.11 -c requirements.lock - -o tests/chart.lock
	echo 'pyspark==4.0.1' | $(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-annotate --no-header --no-deps --python-version 3.11 - -o benchmarks/spark/requirements.lock

clean:                    ## delete everything that was built or fetched
	find remoting broker -name '*.so' -delete
	rm -rf $(VENV) .tools build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage
