#!/bin/bash
# Builds the files of a release: static binaries, images, licences, lists of components and checksums.
#   deploy/release/build.sh FOLDER ARCHITECTURE...
# An architecture is x86_64 or aarch64. Paths and times are left out of the files, so that the same sources, Rust and packages of
# Debian give the same bytes. Needs an x86_64 machine, because another compiler of C would give other bytes, and root, because only
# root may set the capability of a file in an image. The folder is replaced.
set -euo pipefail

output=$(realpath -m "${1:?the folder for the files}")
shift
: "${1:?an architecture}"
if [ "$(uname -m)" != x86_64 ]; then
  echo "deploy/release/build.sh: a release is built on an x86_64 machine" >&2
  exit 1
fi
if [ -e "$output" ] && [ -n "$(ls -A "$output")" ] && ! [ -e "$output/SHA256SUMS" ]; then
  echo "deploy/release/build.sh: $output has other files than those of a release" >&2
  exit 1
fi
root=$(cd "$(dirname "$0")/../.." && pwd)
cd "$root"
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
cargo=${CARGO:-cargo}
registry=${CARGO_HOME:-$HOME/.cargo}
native=$(uname -m)

# Paths in messages and in the compiler's tables would differ between machines. Cargo ignores these options where it computes names
# from the flags of a build.
remap="--remap-path-prefix=$root=/portolan --remap-path-prefix=$registry=/cargo"
# Nothing reads the tables for unwinding: a panic aborts.
export RUSTFLAGS="-C force-unwind-tables=no $remap"
# Times in archives, and in the list of components.
export SOURCE_DATE_EPOCH=0
export CARGO_INCREMENTAL=0
umask 022

rm -rf "$output"
mkdir -p "$output"
work=$(mktemp -d)
components=portolan-release-components
trap 'rm -rf "$work"; find "$root/crates" -name "$components.json" -delete' EXIT

for architecture; do
  target=$architecture-unknown-linux-musl
  name=${architecture/x86_64/amd64}
  name=${name/aarch64/arm64}
  rustup target list --installed | grep -qx "$target" || rustup target add "$target"
  if [ "$architecture" != "$native" ]; then
    # Only ring has C code. It uses nothing of the C library but memcpy and memset, so headers of glibc are good enough.
    variable=${target//-/_}
    export "CC_$variable=$architecture-linux-gnu-gcc" "CFLAGS_$variable=-U_FORTIFY_SOURCE -ffile-prefix-map=$root=/portolan -ffile-prefix-map=$registry=/cargo"
    export "CARGO_TARGET_$(tr a-z A-Z <<< "$variable")_LINKER=$architecture-linux-gnu-gcc"
  else
    export CFLAGS="-ffile-prefix-map=$root=/portolan -ffile-prefix-map=$registry=/cargo"
  fi
  # Each binary by itself: built together, portolan-proxy would get the features that portolan needs of their dependencies.
  for binary in portolan-proxy portolan; do
    "$cargo" build --quiet --locked --profile dist -p "$binary" --target "$target"
    cp "target/$target/dist/$binary" "$output/$binary-$version-$architecture"
  done
  ARCHITECTURE=$name deploy/image/iptables.sh "$work/$name"
  image() { ARCHITECTURE=$name deploy/image/build.sh "$@"; }
  image "$output/portolan-proxy-$version-$architecture" "$output/portolan-image-$version-$name.tar" "portolan:$version" "$work/$name"
  image "$output/portolan-proxy-$version-$architecture" "$output/portolan-image-small-$version-$name.tar" "portolan:$version-small"
  image "$output/portolan-$version-$architecture" "$output/portolan-image-up-$version-$name.tar" "portolan-up:$version" '' portolan
done

# The components of each binary, as CycloneDX. The tool writes into the folder of each crate.
for package in proxy:portolan-proxy cli:portolan; do
  manifest=crates/${package%%:*}
  "$cargo" cyclonedx --quiet --format json --manifest-path "$manifest/Cargo.toml" --target x86_64-unknown-linux-musl \
    --override-filename "$components"
  sed "s|$root|/portolan|g" "$manifest/$components.json" > "$output/${package##*:}-$version.cdx.json"
done

# The licences of all crates, and of Rust's standard library and of musl, which are in each binary, too.
licences=$output/LICENCES-$version.txt
"$cargo" about generate --frozen --fail --config deploy/release/about.toml --manifest-path crates/cli/Cargo.toml \
  deploy/release/about.hbs > "$licences"
printf '\n%s\nmusl\n\n' "$(printf '=%.0s' {1..80})" >> "$licences"
cat /usr/share/doc/musl/copyright >> "$licences"
cp "$(rustc --print sysroot)/share/doc/rust/COPYRIGHT-library.html" "$output/LICENCES-$version-rust.html"

cd "$output"
touch -d @0 ./*
sums=$(sha256sum -- *)
printf '%s\n' "$sums" | tee SHA256SUMS
