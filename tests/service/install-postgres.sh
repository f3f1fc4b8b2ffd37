#!/bin/sh
# The service tier starts its own PostgreSQL servers; all it needs is the binaries. Debian's package, without its default cluster.
set -eu
for dir in /usr/lib/postgresql/*/bin; do
  [ -x "$dir/postgres" ] && exit 0
done
command -v postgres >/dev/null 2>&1 && exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
  echo "install-postgres.sh: the service tests need PostgreSQL >= 15 on PATH or in /usr/lib/postgresql/*/bin" >&2
  exit 3
fi
export DEBIAN_FRONTEND=noninteractive
apt-get -q update >/dev/null
apt-get -qy install postgresql-common >/dev/null
sed -i 's/^#\? *create_main_cluster *=.*/create_main_cluster = false/' /etc/postgresql-common/createcluster.conf
apt-get -qy install postgresql >/dev/null
