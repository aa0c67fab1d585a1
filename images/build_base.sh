#!/bin/bash
# Builds the template `base`: a small Debian 12 with Python, git and curl, as a raw ext4 image.
#
#   images/build_base.sh --out DIR [--sources FILE]
#
# DIR gets   disk.img (sparse)  manifest.json  packages.lock   (world-readable).
# Packages come from where this host gets its own (or from FILE, in deb822 or one-line form); nothing of that stays in the image.
# A second run does nothing unless the recipe (this script and base/) changed or a newer version of one of the packages is known
# to this host's apt. Progress goes to stderr as "progress PERCENT WHAT". Needs root; the host never mounts the image.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out= sources=
suite=bookworm
disk_mib=4096
packages_expected=158

die() { echo "build_base: $*" >&2; exit 1; }
progress() { echo "progress $1 $2" >&2; }

while [ $# -gt 0 ]; do
  case $1 in
    --out) out=${2:?--out wants a directory}; shift 2 ;;
    --sources) sources=${2:?--sources wants a file}; shift 2 ;;
    *) sed -n '4p' "$0" | sed 's/^# */usage: /' >&2; exit 2 ;;
  esac
done
[ -n "$out" ] || die "--out DIR is missing"
[ "$(id -u)" -eq 0 ] || die "must run as root (mmdebstrap unpacks files of other owners)"
[ -z "$sources" ] || [ -r "$sources" ] || die "cannot read $sources"
for tool in mmdebstrap mke2fs apt-cache dpkg python3; do
  command -v "$tool" >/dev/null || die "'$tool' is not installed; see tools/packages.txt"
done

umask 022
mkdir -p "$out"
out=$(cd "$out" && pwd)
exec 9>"$out/.lock"
flock 9
# Leftovers of a build that was killed; nobody else works here, we hold the lock.
find "$out" -maxdepth 1 -name '.work.*' -exec rm -rf --one-file-system {} +
work=$(mktemp -d "$out/.work.XXXXXX")
chmod 0755 "$work"
watcher=
cleanup() {
  [ -z "$watcher" ] || kill "$watcher" 2>/dev/null || true
  rm -rf --one-file-system "$work"
}
trap cleanup EXIT

recipe() { (cd "$here" && find build_base.sh template_image.py base -type f -print0 | sort -z | xargs -0 sha256sum | sha256sum | cut -d ' ' -f 1); }

# The host's own sources for our suite and nothing else: other repositories must not leak into the template.
choose_sources() {
  if [ -n "$sources" ]; then
    cp "$sources" "$work/host.${sources##*.}"
    echo "$work/host.${sources##*.}"
    return
  fi
  python3 "$here/template_image.py" sources "$suite" "$work/host.sources" /etc/apt/sources.list /etc/apt/sources.list.d
  echo "$work/host.sources"
}

is_current() {
  [ -s "$out/disk.img" ] && [ -s "$out/manifest.json" ] && [ -s "$out/packages.lock" ] || return 1
  [ "$(cat "$out/recipe" 2>/dev/null)" = "$1" ] || return 1
  local newer
  newer=$(cut -d ' ' -f 1 "$out/packages.lock" | xargs apt-cache -o "Dir::Etc::SourceList=$2" -o Dir::Etc::SourceParts=/dev/null \
    -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= policy 2>/dev/null |
    python3 "$here/template_image.py" newer "$out/packages.lock") || return 1
  [ -z "$newer" ] || { echo "newer packages: $newer" >&2; return 1; }
}

progress 0 "looking at the template base"
host_sources=$(choose_sources) || die "this host's apt has no sources for Debian $suite; pass --sources FILE"
recipe=$(recipe)
if is_current "$recipe" "$host_sources"; then
  echo "template base is up to date ($(python3 -c 'import json,sys; print(json.load(open(sys.argv[1]))["build"])' "$out/manifest.json"))" >&2
  progress 100 "template base ready"
  exit 0
fi

# How this host reaches its mirrors (proxies, timeouts) is needed while building; customize.sh removes it again.
apt-config dump | grep '^Acquire::' >"$work/acquire.conf" || true
tree=$work/tree
mkdir "$tree"

count_packages() {
  local done
  while sleep 2; do
    done=$(find "$tree/var/lib/dpkg/info" -name '*.list' 2>/dev/null | wc -l)
    [ "$done" -eq 0 ] || progress $((20 + 60 * (done < packages_expected ? done : packages_expected) / packages_expected)) \
      "installing packages ($done of about $packages_expected)"
  done
}

progress 3 "downloading packages"
count_packages 9>&- &
watcher=$!
started=$SECONDS
included=$(grep -v '^#' "$here/base/packages" | paste -sd ,)
SOURCE_DATE_EPOCH=$(date -u -d "$(date -u +%F)" +%s) \
mmdebstrap --mode=root --variant=minbase --format=directory --include="$included" \
  --aptopt="$work/acquire.conf" --aptopt='Acquire::Languages "none"' --aptopt='APT::Install-Recommends "false"' \
  --dpkgopt=force-unsafe-io --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
  --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
  --customize-hook="$here/base/customize.sh" "$suite" "$tree" "$host_sources" 9>&- >"$work/log" 2>&1 ||
  { tail -n 30 "$work/log" >&2; die "mmdebstrap failed; its last lines are above"; }
kill "$watcher" 2>/dev/null || true
watcher=
echo "packages installed in $((SECONDS - started)) s" >&2

progress 85 "making the file system"
dpkg-query --admindir="$tree/var/lib/dpkg" -W -f '${Package} ${Version} ${Architecture}\n' | LC_ALL=C sort >"$work/packages.lock"
python3 "$here/template_image.py" image "$tree" "$work/disk.img" "$disk_mib"
progress 95 "writing the manifest"
python3 "$here/template_image.py" manifest "$work/disk.img" "$work/packages.lock" "$recipe" >"$work/manifest.json"
chmod 0644 "$work"/{disk.img,packages.lock,manifest.json}
printf '%s\n' "$recipe" >"$work/recipe"

# The manifest vanishes first and comes back last, so that no moment shows an old one beside a new image.
rm -f "$out/manifest.json"
for file in disk.img packages.lock recipe manifest.json; do mv "$work/$file" "$out/$file"; done
progress 100 "template base ready"
