#!/bin/sh
# Makes every lock again from the .in files and the packages' own pyproject.toml files.
#
#   requirements/lock.sh                keeps the versions in the locks where they still fit
#   requirements/lock.sh --upgrade      takes the newest
#
# Locks are universal (any platform), hash-locked and name no index. Two runs over the same input
# give the same bytes.
set -eu
cd "$(dirname "$0")/.."

compile() {
  output=requirements/$1.lock
  shift
  uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header \
    --python-version 3.11 --output-file "$output" "$@"
}

# Our own packages are installed from their folders, never from an index, so a lock takes their
# dependencies only: packages NAME FOLDER... then options for the compiler after a "--".
packages() {
  name=$1
  shift
  : >"$own"
  while [ $# -gt 0 ] && [ "$1" != -- ]; do
    printf './%s\n' "$1" >>"$own"
    shift
  done
  shift
  compile "$name" "$@" --no-emit-package terrace-common --no-emit-package terrace-gateway \
    --no-emit-package terrace-model-simulator --no-emit-package terrace-components \
    --no-emit-package terrace-blueprints --no-emit-package terrace-local \
    --no-emit-package terrace-cli --no-emit-package terrace-policies --no-emit-package terrace-secret-bootstrap \
    --no-emit-package terrace-quota-sync "$own"
}

own=$(mktemp)
trap 'rm -f "$own"' EXIT

compile bootstrap "$@" requirements/bootstrap.in
compile build "$@" requirements/build.in
compile translator "$@" --no-emit-package soundfile --no-emit-package numpy \
  --no-emit-package hf-xet requirements/translator.in
packages infra services/common components blueprints policies local cli services/secret_bootstrap -- \
  "$@" requirements/infra.in
packages services services/common[telemetry] services/gateway[export] services/model_simulator \
  services/quota_sync -- "$@" requirements/services.in
# What runs in an image is what the tests ran with.
packages gateway services/common[telemetry] services/gateway[export] -- \
  "$@" --constraints requirements/services.lock
packages model-simulator services/common[telemetry] services/model_simulator -- \
  "$@" --constraints requirements/services.lock
