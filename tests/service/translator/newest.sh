#!/bin/sh
# Runs the contract tests against the newest LiteLLM that installs, in an environment of its own:
# tests/service/translator/newest.sh FOLDER [pytest options]
set -eu
folder=${1:?usage: newest.sh FOLDER [pytest options]}
shift
root=$(cd "$(dirname "$0")/../../.." && pwd)
uv=$root/.venv-uv/bin/uv
"$uv" venv --quiet --python "$root/.venv-translator/bin/python" "$folder"
sed 's/^litellm==.*/litellm/' "$root/requirements/translator.in" >"$folder/translator.in"
"$uv" pip install --quiet --python "$folder/bin/python" -r "$folder/translator.in" \
  -r "$root/tests/service/translator/newest.in"
"$uv" pip freeze --python "$folder/bin/python" | grep '^litellm=='
cd "$root"
TERRACE_TRANSLATOR_PYTHON=$folder/bin/python exec .venv-services/bin/python -m pytest \
  tests/service/translator "$@"
