# Terrace. The two commands a newcomer needs: `make up` and `make test`. `make help` lists the rest.
PYTEST_ARGS ?=
# Test processes side by side, where tests share nothing; whole files stay together for their fixtures.
WORKERS ?= $(shell nproc)
# The order and the dice of a run are fixed, so that what fails is the change; `make unit ORDER=` shuffles.
ORDER ?= --randomly-seed=0 --randomly-dont-reorganize --hypothesis-seed=0
SIDE_BY_SIDE = $(ORDER) -n $(WORKERS) --dist loadfile

.PHONY: help up down test lint unit engine test-long service contract-newest test-cluster lock env-infra env-services env-translator

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

up: env-infra ## from a bare machine to a governed model call (root on Linux)
	@.venv/bin/terrace up $(if $(STAGE),--stage $(STAGE))

down: env-infra ## stop and remove everything that `make up` made, its data too
	@.venv/bin/terrace down --yes

test: lint unit engine service ## every test that needs no cluster

lint: env-infra env-services env-translator ## ruff and types, each package in the environment that it runs in
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/basedpyright --pythonpath .venv/bin/python components blueprints local cli policies services/secret_bootstrap
	.venv/bin/basedpyright --pythonpath .venv-services/bin/python services/common services/gateway services/model_simulator services/quota_sync
	.venv/bin/basedpyright --pythonpath .venv-translator/bin/python services/translator

unit: env-infra env-services ## pure logic, and components under Pulumi mocks
	.venv/bin/python -m pytest $(SIDE_BY_SIDE) $(PYTEST_ARGS) tests/unit/local tests/unit/cli tests/unit/blueprints tests/unit/components tests/unit/secret_bootstrap tests/unit/policies tests/unit/house tests/graph
	.venv-services/bin/python -m pytest $(SIDE_BY_SIDE) $(PYTEST_ARGS) tests/unit/common tests/unit/gateway tests/unit/model_simulator tests/unit/quota_sync

engine: env-infra ## the real Pulumi engine against a simulated AWS and Kubernetes
	.venv/bin/python -m terrace_local.toolchain ensure 1 pulumi pulumi-language-python pulumi-language-yaml
	.venv/bin/python -m pytest $(SIDE_BY_SIDE) $(PYTEST_ARGS) -m "not long" tests/engine

test-long: env-infra ## what takes too long for every run: each create of each stack fails once
	.venv/bin/python -m terrace_local.toolchain ensure 1 pulumi pulumi-language-python
	.venv/bin/python -m pytest $(ORDER) $(PYTEST_ARGS) -m long tests/engine

service: env-services env-translator ## real Postgres, the real LiteLLM, fakes that keep their own books
	sh tests/service/install-postgres.sh
	.venv-services/bin/python -m pytest $(SIDE_BY_SIDE) $(PYTEST_ARGS) tests/service

contract-newest: env-services env-translator ## what we rely on from LiteLLM, against the newest one that installs (minutes)
	@folder=$$(mktemp -d); sh tests/service/translator/newest.sh "$$folder" $(PYTEST_ARGS); code=$$?; rm -rf "$$folder"; exit $$code

test-cluster: env-infra env-services ## up, smoke, faults and down on this machine (root on Linux)
	.venv/bin/python -m pytest $(ORDER) $(PYTEST_ARGS) tests/cluster

lock: ## make requirements/*.lock anew from the packages' pyproject.toml
	sh requirements/lock.sh

env-infra env-services env-translator: env-%:
	@sh requirements/install.sh $*
