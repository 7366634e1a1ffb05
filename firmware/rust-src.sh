#!/usr/bin/env bash
# rust-src.sh DIR: unpacks the library sources of exactly this machine's rustc from Debian's rust-src package into DIR
# and prints their path. For machines where rustup cannot fetch a target. Nothing is installed: Debian's package would
# conflict with rustup, so apt works in a private root with the machine's own mirror and keyring.
set -euo pipefail
dir=$(realpath -m "$1")
version=$(rustc -vV | sed -n 's/^release: //p')
library=$dir/usr/src/rustc-$version/library
[ -d "$library" ] && { echo "$library"; exit; }

command -v apt-get >/dev/null || { echo "no apt-get" >&2; exit 1; }
mirror=$(grep -shoE 'https?://[^ ]+/debian/?( |$)' /etc/apt/sources.list /etc/apt/sources.list.d/* | sed 's/ $//;1q' || true)
[ -n "$mirror" ] || { echo "no Debian mirror in /etc/apt" >&2; exit 1; }
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
apt=$dir/apt
mkdir -p "$apt/lists/partial" "$apt/archives/partial" "$apt/etc/sources.list.d" "$apt/etc/preferences.d" "$apt/etc/apt.conf.d"
: >"$apt/status"
for suite in sid trixie-backports trixie bookworm-backports; do
    echo "deb [signed-by=$keyring check-valid-until=no] $mirror $suite main"
done >"$apt/etc/sources.list"
cat >"$apt/apt.conf" <<CONF
Dir::Etc "$apt/etc"; Dir::Etc::sourcelist "$apt/etc/sources.list"; Dir::Etc::sourceparts "$apt/etc/sources.list.d";
Dir::State "$apt"; Dir::State::lists "$apt/lists"; Dir::State::status "$apt/status";
Dir::Cache "$apt"; Dir::Cache::archives "$apt/archives";
APT::Sandbox::User ""; Acquire::Languages "none";
CONF
export APT_CONFIG=$apt/apt.conf
echo "Fetching the library sources of rustc $version from Debian (some 80 MB)" >&2
apt-get -qq update >&2
package=$(apt-cache madison rust-src | awk -v v="$version+" 'index($3, v) == 1 { print $3; exit }')
[ -n "$package" ] || { echo "Debian has no rust-src $version" >&2; exit 1; }
cd "$apt"
apt-get -qq download "rust-src=$package" >&2
dpkg --fsys-tarfile rust-src_*.deb | tar x -C "$dir" "./usr/src/rustc-$version/library"
rm -r "$apt"
echo "$library"
