.PHONY: help setup check test test-gpu demo serve
help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
setup: ## virtual environment and server
	@bash run.sh setup
check: ## ruff, formatting, mypy --strict, import order, size report
	@bash run.sh check
test: ## unit, parity and server tests
	@bash run.sh test
test-gpu: ## tests that need a GPU, with PYTHON_GPU
	@bash run.sh test-gpu
demo: ## speak a text through the real server
	@bash run.sh demo
serve: ## serve MODEL_DIR
	@bash run.sh serve
