#!/bin/bash
# Runs after the packages are configured, with the new root as $1: our files, the user, and nothing of the host left behind.
set -euo pipefail

root=$1
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

cp -r --no-preserve=ownership,mode "$here/etc/." "$root/etc/"
chmod 0440 "$root/etc/sudoers.d/user"
chroot "$root" visudo -cqf /etc/sudoers

# Runs clear_console at the end of every `bash -l -c 'exit 1'`.
rm -f "$root/etc/skel/.bash_logout"
chroot "$root" useradd --create-home --user-group --uid 1000 --groups sudo --shell /bin/bash user
chmod 0755 "$root/home/user"
cp "$root/etc/skel/.profile" "$root/etc/skel/.bashrc" "$root/root/"

# Packages that users add stay as small as ours and are not synced file by file.
mv "$root/etc/dpkg/dpkg.cfg.d/99mmdebstrap" "$root/etc/dpkg/dpkg.cfg.d/90slim"
rm -f "$root/etc/apt/apt.conf.d/99mmdebstrap" "$root/etc/apt/sources.list.d/"*
: >"$root/etc/machine-id"
rm -rf "$root/usr/share/info" "$root/usr/share/lintian" "$root/usr/share/gitweb" "$root/usr/share/doc-base"
find "$root/var/log" -type f -delete
rm -f "$root/var/cache/ldconfig/aux-cache" "$root/etc/.pwd.lock" "$root"/etc/{passwd,group,shadow,gshadow,subuid,subgid}-

# Debian compiles its Python at installation; this catches what came without, so that no first start has to.
chroot "$root" python3 -m compileall -q -j 1 /usr/lib/python3.11 /usr/lib/python3

# The promise of etc/profile, held here: with room for no second process, a login shell has to come up, and end, all the same.
for words in "true" "exit 0"; do
  complaint=$(chroot "$root" setpriv --reuid 1000 --regid 1000 --clear-groups env -i HOME=/home/user USER=user TERM=xterm \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin prlimit --nproc=1:1 bash -l -c "$words" 2>&1) || complaint="exit code $?: $complaint"
  [ -z "$complaint" ] || { echo "a login shell of the template starts processes: $complaint" >&2; exit 1; }
done
