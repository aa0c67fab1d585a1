#!/bin/bash
# The first screen of the README on a machine with nothing installed: a minimal Debian 12 in a directory, entered in its own mount
# and process namespaces, with this checkout's last commit cloned inside.
#
#   tools/bare_machine.sh [--dir DIR] [--keep] [-- COMMAND...]
#
# Without COMMAND: ./dev up, ./dev up again, the commands of the first screen, the E2B client, ./dev down --purge. With it: that, in
# the clone (for example: -- ./dev test). Prints each command with the seconds it took. DIR (default below /var/tmp) wants 15 GB and is
# removed at the end unless --keep. Needs root. It shares the host's kernel, network (the default ports must be free) and control
# groups; packages come from where this host gets its own.
set -euo pipefail

root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd)
dir= keep=
suite=bookworm

die() { echo "bare_machine: $*" >&2; exit 1; }
say() { printf '%s  %s\n' "$(date -u +%T)" "$*" >&2; }

while [ $# -gt 0 ]; do
  case $1 in
    --dir) dir=${2:?--dir wants a directory}; shift 2 ;;
    --keep) keep=yes; shift ;;
    --) shift; break ;;
    *) sed -n '5p' "$0" | sed 's/^# */usage: /' >&2; exit 2 ;;
  esac
done
[ "$(id -u)" = 0 ] || die "must run as root: it makes namespaces and mounts"
command -v mmdebstrap >/dev/null || die "mmdebstrap is not installed; see tools/packages.txt"
for port in 7380 7443; do
  ! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || die "port $port is taken: the platform runs here already; stop it first: ./dev down"
done
dir=${dir:-$(mktemp -d /var/tmp/space-bare.XXXXXX)}
mkdir -p "$dir"
machine=$dir/root
[ ! -e "$machine" ] || die "$machine exists already"
cleanup() { [ -n "$keep" ] || rm -rf --one-file-system "$dir"; }
trap cleanup EXIT
trap 'exit 130' INT TERM

say "a minimal Debian 12 in $machine"
python3 "$root/images/template_image.py" sources "$suite" "$dir/host.sources" /etc/apt/sources.list /etc/apt/sources.list.d ||
  die "this host's apt has no sources for Debian $suite"
# How this host reaches its mirrors (proxies, timeouts).
apt-config dump | grep '^Acquire::' >"$dir/acquire.conf" || true
mmdebstrap --mode=root --variant=minbase --include=git,ca-certificates --aptopt="$dir/acquire.conf" \
  --aptopt='APT::Install-Recommends "false"' "$suite" "$machine" "$dir/host.sources" >"$dir/mmdebstrap.log" 2>&1 ||
  { tail -n 20 "$dir/mmdebstrap.log" >&2; die "mmdebstrap failed"; }
rm -f "$machine/etc/apt/sources.list" "$machine"/etc/apt/sources.list.d/*
cp "$dir/host.sources" "$machine/etc/apt/sources.list.d/host.sources"
cp "$dir/acquire.conf" "$machine/etc/apt/apt.conf.d/90host"
[ ! -d /etc/apt/auth.conf.d ] || cp -a /etc/apt/auth.conf.d/. "$machine/etc/apt/auth.conf.d/"
for file in /etc/resolv.conf /etc/hosts /etc/hostname /etc/pip.conf /etc/ssl/certs/ca-certificates.crt; do
  [ ! -f "$file" ] || cp -L "$file" "$machine$file"
done
mkdir -p "$machine/root"
git clone --quiet --no-local "$root" "$machine/root/space"
say "commit $(git -C "$machine/root/space" log -1 --format='%h %s')"
say "installed: $(chroot "$machine" dpkg-query -W -f '.\n' | wc -l) packages"

cat >"$machine/root/first_screen.sh" <<'END'
set -euo pipefail
cd /root/space
run() {
  local started=$SECONDS
  printf '\n# %s\n' "$*"
  eval "$*"
  printf '# %d s\n' $((SECONDS - started))
}
run ./dev up
run ./dev up
export PATH=$PWD/build/release/src:$PATH
run 'id=$(space sandbox create); echo $id'
run 'space exec $id -- python3 -c "print(6*7)"'
run 'echo "a,b" > data.csv; space cp ./data.csv $id:/home/user/; space exec $id -- cat /home/user/data.csv'
run 'space cp $id:/home/user/data.csv ./back.csv; cmp data.csv back.csv'
run space sandbox list
run space sandbox rm '$id'
run 'space doctor || true'
run space key create --name me
run 'python3 -m venv e2b && e2b/bin/pip install --quiet e2b==2.21.1'
run 'eval "$(space env)"; e2b/bin/python -c "
from e2b import Sandbox
sandbox = Sandbox.create()
print(sandbox.commands.run(\"python3 -c \\\"print(6*7)\\\"\").stdout)
sandbox.kill()"'
run ./dev down
run ./dev down --purge
run 'ls -d /var/lib/space /run/space 2>/dev/null || echo nothing is left'
END

# Inside: kernel file systems, the machine as root by pivot_root (jails do the same again, which a mere chroot refuses), then the commands.
cat >"$dir/enter.sh" <<'END'
set -euo pipefail
machine=$1
shift
mount --bind "$machine" "$machine"
cd "$machine"
mount --rbind /dev dev
mount --rbind /sys sys
mount -t proc proc proc
mount -t tmpfs -o mode=755 tmpfs run
mkdir -p old-root
wheels=${PIP_FIND_LINKS:-}
if [ -d "$wheels" ]; then mkdir -p ".$wheels"; mount --bind -o ro "$wheels" ".$wheels"; fi
pivot_root . old-root
umount -l /old-root
rmdir /old-root
cd /root/space
exec "$@"
END

if [ $# -eq 0 ]; then set -- bash /root/first_screen.sh; fi
started=$SECONDS code=0
env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 NO_COLOR=1 TERM=dumb \
  ${http_proxy:+http_proxy="$http_proxy"} ${https_proxy:+https_proxy="$https_proxy"} ${no_proxy:+no_proxy="$no_proxy"} \
  ${PIP_FIND_LINKS:+PIP_FIND_LINKS="$PIP_FIND_LINKS"} ${PIP_INDEX_URL:+PIP_INDEX_URL="$PIP_INDEX_URL"} \
  unshare --mount --pid --fork --kill-child --propagation private bash "$dir/enter.sh" "$machine" "$@" || code=$?
say "ended with $code after $(((SECONDS - started) / 60)) minutes"
exit "$code"
