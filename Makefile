# Needs make and Python >= 3.11; the Kafka tests also need Java 17 and Maven.
# Set PYTHON to choose the interpreter: make test PYTHON=python3.12

SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
# Pure tests are bound by the processor, but some wait for a program that they start: one process more than cores,
# each of which steals tests from the others' ends.
# Those that wait for a broker or another program want two more; a group of them shares a process and what it started.
# One thread of BLAS in each: where more of them than cores wait for one another a small product takes many times
# as long. Bytecode is kept, whatever the environment says: else each process compiles every test and module anew.
PURE_WORKERS ?= 3
WAITING_WORKERS ?= 4
PYTEST := PYTHONDONTWRITEBYTECODE= OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest
PURE := $(PYTEST) --part=pure -n $(PURE_WORKERS) --dist worksteal
WAITING := $(PYTEST) --part=waiting -n $(WAITING_WORKERS) --dist loadgroup --no-loadscope-reorder
# Both parts, whether or not the first one fails; what failed in them is shown again at the end.
both = rm -f build/durations/*.failed; failed=0; $(PURE) $(1) || failed=1; $(WAITING) $(1) || failed=1; \
	test $$failed = 0 || cat build/durations/*.failed; exit $$failed
NEW_ENOUGH := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.14 python; do \
	"$$p" -c '$(NEW_ENOUGH)' >/dev/null 2>&1 && echo "$$p" && break; done)

.PHONY: demo dashboard test test-rest test-all quick check lint security lock pin sbom docs soak fuzz clean
.DELETE_ON_ERROR:

demo: $(VENV)/demo.stamp
	@$(BIN)/streaming-pca demo

# The demo, and then its stream in a browser until Ctrl-C.
dashboard: $(VENV)/demo,dashboard.stamp
	@$(BIN)/streaming-pca demo --dashboard

# Library and service, and one test of each extra.
test: $(VENV)/test.stamp
	@$(call both,--scope=test)

# All that `make test` leaves out.
REST := $(VENV)/test,lint,deploy-test,browser-test.stamp
test-rest: $(REST)
	@$(call both,--scope=rest)

test-all: $(REST)
	@$(call both,--scope=all)

# Everything, with the cases that others stand for, more examples, ten minutes of faults, and as long at full speed.
# One hour at full speed alone: .venv/bin/python -m pytest tests/soak -m "soak or not soak" --soak-seconds=3600
SOAK_SECONDS ?= 600
soak: $(REST)
	@$(call both,-m "soak or not soak" --hypothesis-profile=soak --chaos-seconds=600 --soak-seconds=$(SOAK_SECONDS))

# Hostile input, guided by coverage: FUZZ_SECONDS for each target. Failures stay in build/fuzz.
FUZZ_SECONDS ?= 60
fuzz: $(VENV)/fuzz.stamp
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m tests.fuzz atheris $(FUZZ_SECONDS)

lint: $(VENV)/test,lint.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Fast tests, but for many that take long together: `make test` has them.
FAST := --scope=test --fast --ignore=tests/privacy/ledger/test_mutants.py --ignore=tests/service/http/test_limits.py \
	--deselect=tests/estimators/test_conformance.py::test_a_null_record_takes_the_place_of_one_and_shifts_no_other

check: lint
	$(PURE) $(FAST)

# Code by bandit, and what the container installs by pip-audit, which says so where it gets no answer.
security: $(VENV)/lint.stamp
	$(BIN)/bandit --quiet --configfile pyproject.toml --recursive streaming_pca deploy
	$(BIN)/python .ci/audit.py

# All that the container installs, each package with the hashes of its files: for Python 3.11 and later,
# so that the tests install it too.
LOCK := $(BIN)/uv pip compile --quiet --upgrade --universal --fork-strategy fewest \
	--python-version 3.11 --generate-hashes --no-emit-index-url --custom-compile-command "make lock"
lock: $(VENV)/deploy-test.stamp
	$(LOCK) pyproject.toml --extra dashboard --extra otel --extra avro --extra protobuf --output-file deploy/requirements/service.txt
	$(LOCK) deploy/requirements/build.in --output-file deploy/requirements/build.txt
	$(LOCK) --no-deps deploy/requirements/flights.in --output-file deploy/requirements/flights.txt

# Adds to the images of others the digests that their registries have for their tags.
IMAGES = $(shell sed -nE 's/^FROM ([a-z]+:[^ @]+).*/\1/p; s/^ +image: ([a-z]+\/[a-z]+:[^ @]+).*/\1/p' \
	deploy/Dockerfile docker-compose.yml | sort -u)
pin:
	@for image in $(IMAGES); do \
		digest=$$(docker buildx imagetools inspect "$$image" | sed -n 's/^Digest: *//p'); \
		test -n "$$digest" || { echo "no digest for $$image: Docker must reach its registry" >&2; exit 1; }; \
		sed -i -E "s#$$image(@sha256:[0-9a-f]+)?( |\$$)#$$image@$$digest\2#" deploy/Dockerfile docker-compose.yml; \
		echo "$$image@$$digest"; \
	done

# The bill of materials of a release (CycloneDX), below dist/.
sbom: $(VENV)/deploy-test.stamp
	$(BIN)/python .ci/sbom.py dist

clean:
	rm -rf $(VENV) build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# What most changes break first.
quick: $(VENV)/test.stamp
	$(PURE) $(FAST) --ignore=tests/service/http \
		tests/privacy tests/config tests/data tests/linalg tests/local tests/service tests/admin tests/docs

docs: $(VENV)/docs.stamp
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# A stamp is written only after the whole installation, so an interrupted one is taken up again.
# pip says nothing for minutes or hundreds of lines: a dot every two seconds, or a line every ten if they are not
# for a terminal; and all lines where it fails. An installation that was not editable leaves a folder of compiled
# kernels, which would hide the sources.
$(VENV)/%.stamp: pyproject.toml
	@test -n "$(PYTHON)" || { echo "no Python >= 3.11 with venv was found: install python3-venv or name one, as in PYTHON=python3.12" >&2; exit 1; }
	@echo "installing streaming-pca[$*] into $(VENV): half a minute and more, with what pip has to download"
	@$(PYTHON) -m venv $(VENV)
	@if test -t 1; then every=2 form=.; else every=10 form='installing, %s s\n'; fi; \
	(s=0; while kill -0 $$$$ 2>/dev/null; do test $$s = 0 || printf "$$form" $$s; sleep $$every >/dev/null 2>&1; s=$$((s + every)); done) & dots=$$!; \
	{ $(BIN)/python -m pip install --upgrade pip && rm -rf $(VENV)/lib/python*/site-packages/streaming_pca && \
		$(BIN)/python -m pip install --editable '.[$*]'; } >$(VENV)/pip.log 2>&1; \
	failed=$$?; kill $$dots; ! test -t 1 || echo; \
	if test $$failed -ne 0; then cat $(VENV)/pip.log >&2; exit $$failed; fi
	@touch $@
