#!/bin/bash
# Builds what every guest starts from: the distribution's kernel as an ELF image, and an initramfs with our agent.
#
#   images/build_guest.sh --out DIR --agent FILE [--kernel-package NAME]
#
# DIR gets   vmlinux  initrd.gz  guest.json   (world-readable)   and kernel/, the cache.
# The kernel is downloaded and unpacked, never installed on this host, and only when the package's version changed; a new
# agent only repacks the initramfs. Progress goes to stderr as "progress PERCENT WHAT".
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out= agent= package=linux-image-cloud-amd64
# In the order of insertion: each needs those before it. The guest kernel has ext4 built in and virtio as modules. The last two
# end connections of before a suspend (src/agent/connections.hpp).
modules=(virtio_ring virtio virtio_mmio virtio_blk failover net_failover virtio_net virtio-rng inet_diag tcp_diag)

die() { echo "build_guest: $*" >&2; exit 1; }
sum() { sha256sum "$1" | cut -d ' ' -f 1; }
progress() { echo "progress $1 $2" >&2; }

while [ $# -gt 0 ]; do
  case $1 in
    --out) out=${2:?--out wants a directory}; shift 2 ;;
    --agent) agent=${2:?--agent wants a file}; shift 2 ;;
    --kernel-package) package=${2:?--kernel-package wants a name}; shift 2 ;;
    *) sed -n '4p' "$0" | sed 's/^# */usage: /' >&2; exit 2 ;;
  esac
done
[ -n "$out" ] || die "--out DIR is missing"
[ -f "$agent" ] || die "--agent FILE is missing: ${agent:-no file given}; build the target space-agent first"
for tool in apt-cache apt-get dpkg-deb lz4 python3 strip; do
  command -v "$tool" >/dev/null || die "'$tool' is not installed; see tools/packages.txt"
done

umask 022
mkdir -p "$out"
out=$(cd "$out" && pwd)
exec 9>"$out/.lock"
flock 9
work=$(mktemp -d "$out/.work.XXXXXX")
trap 'rm -rf "$work"' EXIT
# Leftovers of a build that was killed; nobody else works here, we hold the lock.
find "$out" -maxdepth 1 -name '.work.*' ! -path "$work" -exec rm -rf {} +

# The meta package names the current kernel package in its dependency.
resolve_kernel() {
  local name=$1 dependency
  dependency=$(apt-cache depends --no-recommends --no-suggests "$name" 2>/dev/null |
    sed -n 's/^ *Depends: \(linux-image-[0-9][^ ]*\)$/\1/p' | head -n 1)
  name=${dependency:-$name}
  apt-cache show --no-all-versions "$name" 2>/dev/null | sed -n "s/^Version: /$name /p" | head -n 1
}

unpack_kernel() {
  local name=$1 version=$2 release kernel=$work/kernel found module
  progress 10 "downloading $name"
  # apt drops its privileges for downloads and could not write into a directory of root's.
  (cd "$work" && apt-get -qq -o APT::Sandbox::User=root download "$name=$version" >&2) ||
    die "cannot download $name $version; run 'apt-get update' and try again"
  progress 50 "unpacking $name"
  dpkg-deb -x "$work/$name"_*.deb "$work/package"
  mkdir -p "$kernel/modules"
  release=$(basename "$work"/package/boot/vmlinuz-*)
  release=${release#vmlinuz-}
  python3 "$here/unpack_kernel.py" "$work/package/boot/vmlinuz-$release" "$kernel/vmlinux" || exit 1
  for module in "${modules[@]}"; do
    found=$(find "$work/package/lib/modules/$release" -name "$module.ko" -print -quit)
    [ -n "$found" ] || die "$name has no module $module.ko"
    cp "$found" "$kernel/modules/$module.ko"
    check_dependencies "$found" "$kernel/modules"
    echo "$module.ko" >>"$kernel/modules/order"
  done
  printf '%s\n' "$release" >"$kernel/release"
  sum "$kernel/vmlinux" >"$kernel/vmlinux.sha256"
  printf '%s %s %s\n' "$name" "$version" "${modules[*]}" >"$kernel/key"
  rm -rf "$out/kernel"
  mv "$kernel" "$out/kernel"
}

# A module that comes before one it needs fails in the guest with "No such file or directory" and no disk.
check_dependencies() {
  local needed
  for needed in $(tr '\0' '\n' <"$1" | sed -n 's/^depends=//p' | tr ',' ' '); do
    [ -e "$2/$needed.ko" ] || [ -e "$2/${needed//_/-}.ko" ] || die "$(basename "$1") needs $needed before it"
  done
}

progress 0 "looking for the guest kernel"
read -r name version < <(resolve_kernel "$package") || die "apt knows no package $package; run 'apt-get update'"
if [ "$(cat "$out/kernel/key" 2>/dev/null)" = "$name $version ${modules[*]}" ] && [ -s "$out/kernel/vmlinux" ]; then
  echo "kernel $version is up to date" >&2
else
  unpack_kernel "$name" "$version"
fi

recipe="$(sum "$agent") $(cat "$here/make_initrd.py" "$0" "$out/kernel/key" | sha256sum)"
if [ "$(cat "$out/kernel/packed" 2>/dev/null)" = "$recipe" ] && [ -s "$out/initrd.gz" ] && [ -s "$out/guest.json" ]; then
  echo "initramfs is up to date" >&2
  progress 100 "guest ready"
  exit 0
fi
progress 80 "packing the initramfs"
cp "$agent" "$work/agent"
strip --strip-all "$work/agent" 2>/dev/null || die "cannot strip $agent: is it an ELF program?"
python3 "$here/make_initrd.py" "$work/initrd.gz" "$work/agent" "$out/kernel/modules" || exit 1
cat >"$work/guest.json" <<JSON
{
  "kernel_package": "$name",
  "kernel_version": "$version",
  "kernel_release": "$(cat "$out/kernel/release")",
  "vmlinux_sha256": "$(cat "$out/kernel/vmlinux.sha256")",
  "agent_sha256": "$(sum "$work/agent")",
  "initrd_sha256": "$(sum "$work/initrd.gz")"
}
JSON
# Each name changes at once, guest.json last: who reads it finds files at least as new.
[ "$out/vmlinux" -ef "$out/kernel/vmlinux" ] || ln -f "$out/kernel/vmlinux" "$out/vmlinux"
mv "$work/initrd.gz" "$out/initrd.gz"
mv "$work/guest.json" "$out/guest.json"
printf '%s\n' "$recipe" >"$out/kernel/packed"
progress 100 "guest ready"
