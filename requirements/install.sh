#!/bin/sh
# Makes one of the environments exactly as its lock says: install.sh infra|services|translator
# Needs Python >= 3.11. Does nothing when the environment is already what the lock and the packages ask for.
set -eu
cd "$(dirname "$0")/.."
name=${1:?usage: install.sh infra|services|translator}
case $name in
  infra) venv=.venv; packages="services/common components blueprints policies local cli services/secret_bootstrap" ;;
  services) venv=.venv-services; packages="services/common services/gateway services/model_simulator services/quota_sync services/secret_bootstrap" ;;
  translator) venv=.venv-translator; packages="services/translator" ;;
  *) echo "install.sh: no environment is called '$name'; there are: infra, services, translator" >&2; exit 2 ;;
esac

python=
for candidate in "${PYTHON:-}" python3 python3.14 python3.13 python3.12 python3.11; do
  if [ -n "$candidate" ] && command -v "$candidate" >/dev/null 2>&1 \
      && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    python=$candidate; break
  fi
done
if [ -z "$python" ]; then
  echo "install.sh: no Python >= 3.11 on PATH. Install one (Debian 12: apt-get install python3 python3-venv) or set PYTHON=/path/to/python3" >&2
  exit 3
fi

files="requirements/install.sh requirements/bootstrap.lock requirements/$name.lock"
for package in $packages; do files="$files $package/pyproject.toml"; done
# shellcheck disable=SC2086 # the list is split on purpose; none of these names has a space
want=$({ pwd; "$python" -c 'import sys; print(sys.version)'; cat $files; } | sha256sum | cut -d' ' -f1)
if [ "$(cat "$venv/.installed" 2>/dev/null || true)" = "$want" ] && [ -x "$venv/bin/python" ]; then exit 0; fi

say() { echo "environment $name: $*" >&2; }
for folder in .venv-uv "$venv"; do
  folder=$PWD/$folder
  [ -e "$folder" ] || folder=$PWD
  if [ ! -w "$folder" ]; then
    echo "install.sh: $(id -un 2>/dev/null || id -u) cannot write to $folder: the environment '$name' is installed there." \
      "Use a clone of your own, or run this as the owner of that folder. Nothing was changed." >&2
    exit 3
  fi
done
uv=.venv-uv/bin/uv
if ! "$uv" --version >/dev/null 2>&1; then
  say "installing uv"
  rm -rf .venv-uv
  if ! said=$("$python" -m venv .venv-uv 2>&1); then
    rm -rf .venv-uv
    if "$python" -c 'import ensurepip, venv' 2>/dev/null; then
      printf '%s\n' "install.sh: '$python -m venv .venv-uv' fails in $PWD:" "$said" >&2; exit 3
    elif [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
      say "this Python has no venv module; installing python3-venv"
      apt-get -q update >/dev/null && apt-get -qy install python3-venv >/dev/null
      "$python" -m venv .venv-uv
    else
      echo "install.sh: '$python -m venv' fails; install the venv module (Debian: apt-get install python3-venv)" >&2; exit 3
    fi
  fi
  .venv-uv/bin/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements/bootstrap.lock
fi
say "installing requirements/$name.lock"
rm -f "$venv/.installed"
[ -x "$venv/bin/python" ] || "$uv" venv -q --python "$python" "$venv"
"$uv" pip sync -q --python "$venv/bin/python" --require-hashes "requirements/$name.lock"
editable=
for package in $packages; do editable="$editable -e ./$package"; done
# shellcheck disable=SC2086
"$uv" pip install -q --python "$venv/bin/python" --no-deps --no-build-isolation $editable
printf '%s' "$want" > "$venv/.installed"
say "ready"
