#!/bin/bash
# Boots a guest in software emulation, waits for its agent and says how long that took.
#
#   images/boot_check.sh --guest DIR --disk IMAGE [--memory MIB] [--timeout S] [-- PROGRAM ARG…]
#
# DIR is what build_guest.sh made. The image is not changed. PROGRAM, if given, runs on the host beside the booted guest with
# SPACE_GUEST_URL in its environment; its exit code is ours. Everything happens in network, process and mount namespaces of
# its own, so that the machine, its tap and its address are gone when this ends, however it ends. Needs root.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
exec unshare --net --mount --pid --fork --kill-child --mount-proc -- python3 "$here/boot_check.py" "$@"
