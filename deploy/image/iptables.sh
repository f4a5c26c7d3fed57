#!/bin/sh
# Unpacks the iptables programs from Debian's packages into a folder, with only the files that they need to run. The image
# contains this folder and the static portolan-proxy. Nothing is installed on this machine.
#   deploy/image/iptables.sh FOLDER
# ARCHITECTURE is that of the programs, if it is not this machine's: amd64 or arm64.
set -eu
umask 022

folder=${1:?the folder to fill}
# The dependencies of iptables, except netbase: names of protocols and services, which the agent does not use.
packages="iptables libxtables12 libip4tc2 libip6tc2 libnftnl11 libmnl0 libnetfilter-conntrack3 libnfnetlink0 libc6"
# The licence texts that the copyright files of the other packages refer to.
licences=base-files

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/packages" "$work/root"

apt() { apt-get -qq -o APT::Sandbox::User=root $options "$@"; }
download() { (cd "$work/packages" && apt download $packages $licences); }
options=
if [ "${ARCHITECTURE:-$(dpkg --print-architecture)}" != "$(dpkg --print-architecture)" ]; then
	# The lists of another architecture are kept apart from this machine's own.
	mkdir -p "$work/lists/partial"
	options="-o APT::Architecture=$ARCHITECTURE -o APT::Architectures=$ARCHITECTURE -o Dir::State::Lists=$work/lists"
	options="$options -o Dir::State::status=/dev/null -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache="
	apt update
fi
download || { apt update && download; }

# Debian's merged layout, which both kinds of packages need: before Debian 13, some install files in /lib.
for name in lib lib64 sbin; do
	mkdir -p "$work/root/usr/$name"
	ln -s "usr/$name" "$work/root/$name"
done
for package in "$work"/packages/*.deb; do
	dpkg-deb --fsys-tarfile "$package" | tar -C "$work/root" --keep-directory-symlink -xf -
done

mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
cd "$work/root"
# On x86_64 the loader is found through a link in lib64, on other architectures in lib.
rmdir usr/lib64 2>/dev/null && rm lib64 || cp -a lib64 "$folder"
cp -a lib sbin "$folder"
# All extensions, including those that only other programs' rules use: a table is read as a whole.
cp -a --parents -t "$folder" usr/sbin/xtables-*-multi usr/lib/*/xtables/libxt_* usr/lib/*/xtables/libip*t_* \
	$(find usr -name 'ld-linux*') usr/lib/*/libc.so.6 usr/lib/*/libm.so.6 usr/lib/*/libxtables.so.* \
	usr/lib/*/libip4tc.so.* usr/lib/*/libip6tc.so.* usr/lib/*/libnftnl.so.* usr/lib/*/libmnl.so.* \
	usr/lib/*/libnetfilter_conntrack.so.* usr/lib/*/libnfnetlink.so.*
# The links that update-alternatives creates when the package is installed. Names without a suffix are the nftables variant.
for program in iptables ip6tables; do
	for action in '' -save -restore; do
		ln -s xtables-nft-multi "$folder/usr/sbin/$program-nft$action"
		ln -s xtables-legacy-multi "$folder/usr/sbin/$program-legacy$action"
		ln -s xtables-nft-multi "$folder/usr/sbin/$program$action"
	done
done
# The directory of the legacy variant's lock.
mkdir -p "$folder/run"

# The licences, and the versions in the form that image scanners read.
mkdir -p "$folder/usr/share/common-licenses" "$folder/var/lib/dpkg/status.d"
for package in $packages; do
	cp --parents -t "$folder" "usr/share/doc/$package/copyright"
	dpkg-deb --field "$work/packages/$package"_*.deb >"$folder/var/lib/dpkg/status.d/$package"
done
for licence in $(cat "$folder"/usr/share/doc/*/copyright | grep -o 'common-licenses/[A-Za-z0-9.-]*[A-Za-z0-9]' | sort -u); do
	cp "usr/share/$licence" "$folder/usr/share/common-licenses"
done
