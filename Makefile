# Everything happens in a local virtual environment that these targets make themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOAK ?= 20
SOAK_TESTS := tests/durability tests/fuzz tests/shards/test_tarread.py tests/derive/test_tuning.py \
	tests/derive/test_history.py tests/derive/encoders/test_packages.py tests/pack/test_split.py \
	tests/pack/test_sync.py tests/derive/test_recompute.py tests/derive/test_edited_captions.py tests/storage \
	tests/test_ray.py tests/building/test_ray.py tests/shards/test_cache.py tests/shards/test_url_folders.py \
	tests/pack/test_url_output.py tests/pack/test_interruptions.py tests/pack/test_empty.py \
	tests/pack/test_overwrite.py tests/store/test_store_verify.py tests/test_train.py \
	tests/test_benchmarks.py tests/golden
PIP := $(BIN)/python -m pip --disable-pip-version-check -q

.PHONY: demo train test golden present lint soak bench bench-quick pictures clean

demo: $(VENV)/core.stamp  ## run the main job on made-up data: no download, no torch
	$(BIN)/shardwright demo demo

train: train/report.html  ## train a small model on the demo's shapes, and draw captions with it: six minutes
	$(BIN)/python -u examples/train_dit.py train/shards --checkpoint train/model.pt --grid train/grid.png

# Which the demo writes last.
train/report.html: examples/shapes.toml | $(VENV)/torch.stamp
	$(BIN)/shardwright demo train --recipe $< --pictures 1200 > /dev/null

test: $(VENV)/peers.stamp $(VENV)/servers.stamp $(VENV)/debian.stamp  ## lint, types, layering and every test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -n 2 --dist worksteal

golden: $(VENV)/dev.stamp $(VENV)/servers.stamp  ## write again what users see (tests/golden/expected); explain each changed line
	SHARDWRIGHT_GOLDEN=write $(BIN)/pytest -n 2 --dist worksteal tests/golden -k written_down
	git --no-pager diff --stat -- tests/golden/expected

present: $(VENV)/dev.stamp $(VENV)/servers.stamp  ## keep what this version leaves (tests/earlier/present.tar.xz), for later ones
	$(BIN)/python -m tests.earlier.present

lint: $(VENV)/dev.stamp   ## fix what ruff can fix, then say what is left
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/mypy

soak: $(VENV)/soak.stamp $(VENV)/servers.stamp  ## the tests of faults, kills, power cuts and fuzzing, many times longer: half an hour
	SHARDWRIGHT_SOAK=$(SOAK) $(BIN)/pytest -n 2 --dist worksteal --timeout 3600 $(SOAK_TESTS)
	$(BIN)/python -m tests.fuzz --seconds $$(( $(SOAK) * 6 ))

bench: $(VENV)/bench.stamp $(VENV)/peers.stamp $(VENV)/servers.stamp  ## every figure side by side with what people use now, about 35 minutes
	$(BIN)/python -m benchmarks

bench-quick: $(VENV)/bench.stamp $(VENV)/peers.stamp $(VENV)/servers.stamp  ## the same, small: about a minute
	$(BIN)/python -m benchmarks --quick

pictures: $(VENV)/dev.stamp $(VENV)/debian.stamp  ## make the pictures of the page that README and docs show
	$(BIN)/python docs/pictures.py

clean:                    ## forget the environment, the demo, the trained model, and the data of the benchmarks
	rm -rf $(VENV) demo train benchmarks/cache

$(VENV)/core.stamp: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install -c constraints.txt -e .
	touch $@

$(VENV)/torch.stamp: $(VENV)/core.stamp
	$(PIP) install -c constraints.txt -e '.[torch]'
	touch $@

$(VENV)/dev.stamp: $(VENV)/core.stamp
	$(PIP) install -c constraints.txt -e '.[dev]'
	touch $@

$(VENV)/bench.stamp: $(VENV)/dev.stamp
	$(PIP) install -c constraints.txt -e '.[bench]'
	touch $@

# A folder of its own, which only the tests of these loaders see: some cannot stand beside ours.
$(VENV)/peers.stamp: tests/peers.txt $(VENV)/dev.stamp
	rm -rf $(VENV)/peers
	$(PIP) install --no-deps --no-compile --target $(VENV)/peers -r tests/peers.txt
	touch $@

# Object stores for the tests, in an environment of their own. Azure's needs npm; where it cannot be
# installed, those tests are skipped.
AZURITE := azurite@3.35.0
$(VENV)/servers.stamp: tests/servers.txt | $(VENV)/core.stamp
	rm -rf $(VENV)/servers $(VENV)/azurite
	$(PYTHON) -m venv $(VENV)/servers
	$(VENV)/servers/bin/python -m pip --disable-pip-version-check -q install --no-deps -r $<
	npm install --silent --no-audit --no-fund --prefix $(VENV)/azurite $(AZURITE) || true
	touch $@

# Shells whose completion is tested, and a browser; where they cannot be installed, those tests are
# skipped.
DEBIAN := zsh fish chromium-headless-shell
$(VENV)/debian.stamp: | $(VENV)/core.stamp
	if ! (for each in $(DEBIAN); do command -v $$each || exit 1; done) \
		&& test "$$(id -u)" = 0 && command -v apt-get; then \
		apt-get -qq update; \
		DEBIAN_FRONTEND=noninteractive apt-get -qq install --no-install-recommends $(DEBIAN) \
			fonts-dejavu-core; \
	fi > /dev/null || true
	touch $@

$(VENV)/soak.stamp: $(VENV)/dev.stamp
	$(PIP) install -c constraints.txt -e '.[soak]'
	touch $@
