#!/usr/bin/env bash
# Builds the firmware image and prints its path. For the launcher, for `verilate::firmware_image` and for whoever
# writes firmware. Without a change it only prints, in some 50 ms.
#
# Images (header and code, see `abi::image`) are kept as <cache>/firmware/<hash of the sources>-<compiler>.img. A compiler that cannot get the target's
# library may use an image that another one made of the same sources. FERROCE_FIRMWARE overrides it all.
set -euo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=$(case ${XDG_CACHE_HOME:-} in /*) echo "$XDG_CACHE_HOME" ;; *) echo "$HOME/.cache" ;; esac)/ferroce
target=riscv32im-unknown-none-elf

if [ -n "${FERROCE_FIRMWARE:-}" ]; then
    [ -f "$FERROCE_FIRMWARE" ] || { echo "FERROCE_FIRMWARE=$FERROCE_FIRMWARE is not a file" >&2; exit 1; }
    realpath "$FERROCE_FIRMWARE"
    exit
fi

cd "$top"
sources=$(find firmware hw/abi Cargo.toml -type f -not -path '*/target/*' -print0 | LC_ALL=C sort -z |
    xargs -0 sha256sum | sha256sum | cut -c1-16)
compiler=$(rustc -V | cut -d' ' -f2)
image=$cache/firmware/$sources-$compiler.img
[ -f "$image" ] && { echo "$image"; exit; }

mkdir -p "$cache/firmware"
exec 9>"$cache/firmware/lock"
flock 9
[ -f "$image" ] && { echo "$image"; exit; } # another process built it meanwhile

# The target's core library, by the first way that works.
build=(cargo build --quiet --release --locked --target "$target" --target-dir "$top/target/firmware")
if [ -d "$(rustc --print sysroot)/lib/rustlib/$target" ]; then
    :
elif command -v rustup >/dev/null && rustup target add "$target" >&2; then
    :
elif library=$(firmware/rust-src.sh "$cache/rust-src"); then
    # The library is built along; only the compiler's own version of it may be, hence the unstable switch.
    export RUSTC_BOOTSTRAP=1 __CARGO_TESTS_ONLY_SRC_ROOT=$library
    build+=(-Zbuild-std=core)
else
    other=$(find "$cache/firmware" -name "$sources-*.img" | head -n 1)
    [ -n "$other" ] && { echo "$other"; exit; }
    echo "The firmware needs Rust's core library for $target. Type: rustup target add $target" >&2
    exit 1
fi
echo "building the firmware" >&2
(cd firmware && "${build[@]}" >&2)
env -u RUSTC_BOOTSTRAP cargo run --quiet --locked -p abi --example image \
    "target/firmware/$target/release/firmware" "$image.new" >&2
mv "$image.new" "$image"
echo "$image"
