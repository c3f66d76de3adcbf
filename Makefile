# Everything runs in .venv, which `make install` creates; no target needs root.
PYTHON ?= python3
VENV := .venv
IN_VENV := $(VENV)/bin/python
STAMP := $(VENV)/.installed

.PHONY: help install run serve test check engines hostile images crash crash-docker bench bench-docker bench-graph bench-policy lock

help:  ## Say what can be made.
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 16

install: $(STAMP)  ## Create .venv with belljar and all that development needs.

$(STAMP): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "belljar needs Python 3.11 or newer as $(PYTHON); try: make $(MAKECMDGOALS) PYTHON=python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo "$(PYTHON) cannot make virtual environments; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(IN_VENV) -m pip install --quiet --disable-pip-version-check --constraint requirements.lock --editable '.[dev]'
	@touch $@

run: install  ## Run an example under glass: it reads a table, and leaves a chart and a report.
	$(VENV)/bin/belljar run examples/report.py --input examples/sales.csv \
		--output-prefix docs/artifacts/example --overwrite

serve: install  ## Start the service; it says where it is and where its token lies.
	$(VENV)/bin/belljar serve $(ARGS)

# Each in processes of its own: engines, whose tests look for anything that is left behind, and the browser, which keeps a loop.
TOGETHER := --numprocesses auto --dist loadfile
BESIDE := tests/engines tests/web
ALONE := tests/hostile tests/compat tests/crash tests/egress tests/deploy

test: install  ## Run every test that this machine can run; name what was skipped, and why. ARGS go to pytest instead.
ifdef ARGS
	$(IN_VENV) -m pytest $(ARGS)
else
	$(IN_VENV) -m pytest $(TOGETHER) $(BESIDE:%=--ignore=%) $(ALONE:%=--ignore=%)
	set -e; for part in $(BESIDE); do $(IN_VENV) -m pytest $(TOGETHER) $$part; done
	set -e; for part in $(ALONE); do $(IN_VENV) -m pytest $$part; done
endif

check: install  ## Lint, formatting, types.
	$(IN_VENV) -m ruff check
	$(IN_VENV) -m ruff format --check
	$(IN_VENV) -m mypy

engines: install  ## The contract of engines. ENGINES=docker,gvisor names which ones, and then all of it on each.
	$(IN_VENV) -m pytest tests/engines/test_contract.py $(ARGS)

hostile: install  ## Only the attacks, each of which must fail. ENGINES as above.
	$(IN_VENV) -m pytest tests/hostile $(ARGS)

images: install  ## Build the images of the docker and gvisor engines, without a registry.
	$(VENV)/bin/belljar image build --bootstrap

crash: install  ## Kill a service at every instant that matters, and count what is left. Takes minutes. ARGS: repetitions.
	$(IN_VENV) -m tests.crash.sweep $(ARGS)

crash-docker: install  ## The same at random instants with a docker engine, until it ran 1,000 programs. ARGS: how many, and the engine.
	$(IN_VENV) -m tests.crash.containers $(ARGS)

bench: install  ## What a jar and the service cost, as ratios to a bare python3 in the same run. JSON=1 prints one object.
	$(IN_VENV) bench/bench.py $(if $(JSON),--json) $(ARGS)

bench-docker: install  ## What containers cost, as ratios to docker itself in the same run. JSON=1 prints one object.
	$(IN_VENV) bench/bench_docker.py $(if $(JSON),--json) $(ARGS)

bench-graph: install  ## What a node of a graph costs beside its work.
	$(IN_VENV) bench/bench_graph.py $(if $(JSON),--json) $(ARGS)

bench-policy: install  ## How long a policy decision takes.
	$(IN_VENV) bench/bench_policy.py

lock:  ## Write requirements.lock anew, with the newest versions that pyproject.toml allows.
	set -e; fresh=$$(mktemp -d); trap 'rm -rf "$$fresh"' EXIT; \
	$(PYTHON) -m venv "$$fresh"; \
	"$$fresh/bin/python" -m pip install --quiet --disable-pip-version-check '.[dev]'; \
	{ echo '# Versions that belljar is developed and tested with. Written by `make lock`.'; \
	  "$$fresh/bin/python" -m pip freeze --exclude belljar; } > requirements.lock
