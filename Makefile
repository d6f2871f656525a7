# Thin names over dev.py; `python3 dev.py --help` says what each does. Options go in ARGS: make test ARGS="--fast -k lease"
PYTHON ?= python3
ARGS ?=

.PHONY: up test prove check docs bench lock
up test prove check docs bench lock:
	@$(PYTHON) dev.py $@ $(ARGS)
