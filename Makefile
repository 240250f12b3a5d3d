# Every target sets itself up: an environment in .venv from constraints.txt, models through the registries.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
PEERS := .venv/.installed-peers

.PHONY: demo test test-slow test-peers lint bench-quick bench-peers clean

NATIVE := CMakeLists.txt $(wildcard native/*.h native/*.cpp native/kernels/*.h native/kernels/*.cpp)

$(INSTALLED): pyproject.toml constraints.txt $(NATIVE)
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

$(PEERS): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[peers]"
	touch $@

build/demo.txt: $(INSTALLED)
	mkdir -p build
	$(BIN)/python -m glimpse.bench.workloads --tokens 7000 > $@.part
	mv $@.part $@

demo: build/demo.txt  ## Two questions about one document: plain decoding and SparseSpec-L side by side
	$(BIN)/glimpse compare --file build/demo.txt --max-tokens 96 --repeats 1 --show-text \
	    --ask "Which kinds of objects does the text describe? Explain three of them in detail." \
	    --ask "How does the text say that an attribute of an object is looked up?"

test: lint  ## Lint, types and the default test tier
	$(BIN)/pytest

test-slow: $(INSTALLED)  ## Minutes of work on real weights
	$(BIN)/pytest -m slow

test-peers: $(PEERS)  ## Other engines on a short prompt
	$(BIN)/pytest -m peers

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench-quick: $(INSTALLED)  ## The figures of the README in a few minutes, smaller
	$(BIN)/glimpse bench controller --quick
	$(BIN)/glimpse bench acceptance --quick
	$(BIN)/glimpse bench plain --quick

bench-peers: $(PEERS)  ## Ours beside other engines, all of it: hours; see `glimpse bench --help` for parts
	$(BIN)/glimpse bench peers

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache
