# The commands a newcomer needs:
#   make demo          from a Wikipedia dump to an evaluated BERT, five to twelve minutes on two cores
#   make test          lint, types, import contracts and tests; make lint is its first part
#   make test-cluster  slow proofs: kills; and where they are at hand, a real Flink, a real two-node SLURM, Pods
#   make bench         benchmarks behind claims in docs/, as far as the demo's data goes
# Everything is installed into .venv, which `make venv` makes by itself.

SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
TEXTS := $(VENV)/texts
DEMO := demo

export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
export VIRTUAL_ENV := $(CURDIR)/$(VENV)

.PHONY: venv demo test test-cluster lint bench clean
.DELETE_ON_ERROR:

venv: $(VENV)/.dev

# .venv/.demo and .venv/.dev: the project with that extra is installed. uv takes seconds where pip takes minutes; where uv
# can't reach the package index that pip is set up for, pip does it.
$(VENV)/.%: pyproject.toml | $(TEXTS)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check uv
	uv pip install --quiet --compile-bytecode -e '.[$*]' || $(VENV)/bin/python -m pip install --quiet -e '.[$*]'
	touch $@

# Real text for the demo and for tests: what gensim's wheel carries. gensim itself is not used, so any Python will do.
$(TEXTS):
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
		--python-version 3.11 --platform manylinux_2_28_x86_64 --target $@ gensim==4.4.0

# ---- demo -----------------------------------------------------------------------------------------------------------
# Each file is made by the command that a user would type, and is not made again while it is there.

DUMP := $(TEXTS)/gensim/test/test_data/enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2
EXPORT = $(lastword $(sort $(wildcard $(DEMO)/runs/demo/exports/step-*)))

demo: $(DEMO)/report/report.md
	@echo
	@echo "Results:  $(DEMO)/results/results.json; $(DEMO)/report/report.html for a browser, or report.md with the loss curve curves.png"
	@echo "Model:    $(EXPORT) (pip install transformers, then BertForPreTraining.from_pretrained)"
	@echo "MLflow:   $(VENV)/bin/mlflow ui --backend-store-uri sqlite:///$(DEMO)/runs/mlflow.db, then open http://127.0.0.1:5000"

$(DEMO)/vocab.txt: | $(VENV)/.demo
	python -m preprocessing.train_vocab --wikipedia $(DUMP) --size 8192 --output $@

$(DEMO)/shards/manifest.json: $(DEMO)/vocab.txt
	beam run preprocessing/make_shards.py --wikipedia $(DUMP) --vocab $< --sequence-lengths 128 --duplicates 5 \
		--validation-fraction 0.05 --seed 1 --output $(@D)

# Two ranks on the CPU, on a machine with GPUs too. A training that was stopped ends well too: trainer.outcome tells.
$(DEMO)/runs/demo/.done: $(DEMO)/shards/manifest.json
	DS_ACCELERATOR=cpu deepspeed --quiet --num_accelerators 2 trainer/pretrain.py \
		--config trainer/recipes/demo.toml --deepspeed_config ds_config.json --shards $(<D) --output $(@D)
	python -m trainer.outcome $(@D)
	touch $@

$(DEMO)/results/results.json: $(DEMO)/runs/demo/.done
	rm -f $@
	python -m eval.run --checkpoint $(EXPORT) --tasks mlm,nsp,fill_mask --shards $(DEMO)/shards --samples 1000 \
		--output $(@D)

$(DEMO)/report/report.md: $(DEMO)/results/results.json
	python -m eval.report $(DEMO)/runs/demo --results $< --output $(@D)

# ---- tests ----------------------------------------------------------------------------------------------------------

lint: $(VENV)/.dev
	ruff check .
	ruff format --check .
	mypy
	lint-imports

# Two tests at a time, or WORKERS: one alone leaves half of two cores idle. Each may take 2 GB of memory. The longest files
# begin first; Flink when SLURM is done, as it takes both cores to itself: a training on SLURM beside it takes three times
# as long.
FIRST := $(addprefix tests/,cluster/test_slurm.py integration/test_kill.py integration/test_whole_path.py \
	trainer/test_fused.py trainer/test_engine.py trainer/test_pretrain.py cluster/test_kubernetes.py \
	benchmarks/test_cuda_stand_in.py cluster/test_flink_sidecar.py integration/test_flink.py)
in_order = $(filter $(1),$(FIRST)) $(filter-out $(FIRST),$(sort $(1)))
PYTEST := pytest -n $(or $(WORKERS),2) --dist loadfile --no-loadscope-reorder --durations=15

test: lint
	$(PYTEST) -m "not (slow or long or flink or slurm or kubernetes)" $(call in_order,$(shell find tests -name 'test_*.py'))

test-cluster: $(VENV)/.dev
	$(PYTEST) -m "(slow or flink or slurm or kubernetes) and not long" \
		$(call in_order,$(shell grep -rlE --include='test_*.py' 'mark\.(slow|flink|slurm|kubernetes)' tests))

# The quick form of each; their own --help tells the long ones. benchmarks/make_shards.py wants books of yours.
bench: $(VENV)/.dev $(DEMO)/shards/manifest.json
	python benchmarks/wikitext.py $(DUMP)
	python benchmarks/loader.py --shards $(DEMO)/shards
	python benchmarks/random_reads.py --shards $(DEMO)/shards --gigabytes 0.2

clean:
	rm -rf $(VENV) $(DEMO) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
