.DEFAULT_GOAL := help
PYTHON ?= python
DIST ?= dist

.PHONY: help
help:  ## Show what there is
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk 'BEGIN {FS = ":.*## "} {printf "  %-14s %s\n", $$1, $$2}'

.PHONY: install
install:  ## Install the package with everything a developer needs, editable
	$(PYTHON) -m pip install -e '.[dev]'

.PHONY: test
test:  ## Run the quick list of tests, doctests included
	$(PYTHON) -m pytest -n auto --dist worksteal

.PHONY: test-thorough
test-thorough:  ## Run the thorough list: many parameters, processes, brokers and compilers
	$(PYTHON) -m pytest -n auto --dist loadgroup -m thorough

.PHONY: test-nojit
test-nojit:  ## Run the tests of compiled code without compiling it
	NUMBA_DISABLE_JIT=1 $(PYTHON) -m pytest -n auto --dist worksteal tests

.PHONY: lint
lint: lint-files  ## Check style, formatting, types, wording, and files that other tools read
	ruff check .
	ruff format --check .
	mypy
	pyright
	$(PYTHON) tests/public_types.py
	$(PYTHON) tests/wording.py

.PHONY: lint-files
lint-files:  ## Check workflows, templates of issues and the citation
	check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	check-jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml
	check-jsonschema --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	check-jsonschema --builtin-schema vendor.github-issue-forms $(filter-out %/config.yml,$(wildcard .github/ISSUE_TEMPLATE/*.yml))
	check-jsonschema --builtin-schema vendor.citation-file-format --default-filetype yaml CITATION.cff
	if command -v actionlint; then actionlint; else echo 'SKIPPED: no actionlint on the PATH'; fi

.PHONY: format
format:  ## Mend what ruff can mend
	ruff check --fix .
	ruff format .

.PHONY: docs
docs:  ## Build the documentation site into site/ (pip install -e '.[docs]')
	$(PYTHON) -m sphinx -q -j 2 -W --keep-going -n $(DOCS_FLAGS) -d site/.doctrees docs site

.PHONY: build
build:  ## Build wheel and sdist into dist/
	$(PYTHON) -m build

.PHONY: dist
dist:  ## Build sdist, wheels and this platform's wheel into an empty dist/, and check them (pip install -e '.[release]')
	rm -rf $(DIST)
	$(PYTHON) -m build --no-isolation --outdir $(DIST) .
	$(PYTHON) release/machine_code.py $(DIST)/platform
	STREAMSVM_MACHINE_CODE_IN=$(abspath $(DIST))/platform $(PYTHON) -m build --no-isolation --outdir $(DIST)/platform --wheel .
	$(PYTHON) -m auditwheel repair --wheel-dir $(DIST) $(DIST)/platform/*.whl
	rm -r $(DIST)/platform
	$(PYTHON) -m build --no-isolation --outdir $(DIST) --wheel edge
	$(PYTHON) -m twine check --strict $(DIST)/*
	$(PYTHON) release/check_dist.py $(DIST)

.PHONY: ci
ci:  ## All that has to pass before a change lands
	bash .ci/run

.PHONY: release-check
release-check:  ## The same with more: each installed Python, random tables, kills, pairs, exports, and experts without numba's private parts
	STREAMSVM_TEST_RELEASE=1 bash .ci/run

.PHONY: clean
clean:  ## Remove caches (the tests' cache of compiled code is in the user's cache directory, by a hash of the sources)
	find . -name '__pycache__' -type d -prune -exec rm -rf {} +
	rm -rf dist build site docs/api/generated docs/gallery .pytest_cache .mypy_cache .ruff_cache .hypothesis
