#!/bin/sh
# Puts the programs of iptables into a folder, from Debian's packages, with what they need to run and nothing else:
# what the image holds besides the static binary. Nothing is installed on this machine.
#   deploy/image/iptables.sh FOLDER
set -eu
umask 022

folder=${1:?the folder to fill}
# All that iptables depends on, but for netbase: names of protocols and services, which nobody here asks for.
packages="iptables libxtables12 libip4tc2 libip6tc2 libnftnl11 libmnl0 libnetfilter-conntrack3 libnfnetlink0 libc6"
# For the licences that the copyright files of the others name.
licences=base-files

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/packages" "$work/root"

download() { (cd "$work/packages" && apt-get -qq -o APT::Sandbox::User=root download $packages $licences); }
download || { apt-get -qq update && download; }

# Debian's layout, by which packages of either kind find their files: before Debian 13 some are in /lib.
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
# The loader of x86_64 is found by a link in lib64, that of others is in lib.
rmdir usr/lib64 2>/dev/null && rm lib64 || cp -a lib64 "$folder"
cp -a lib sbin "$folder"
# All extensions, also those that only rules of others use: a table is read as a whole.
cp -a --parents -t "$folder" usr/sbin/xtables-*-multi usr/lib/*/xtables/libxt_* usr/lib/*/xtables/libip*t_* \
	$(find usr -name 'ld-linux*') usr/lib/*/libc.so.6 usr/lib/*/libm.so.6 usr/lib/*/libxtables.so.* \
	usr/lib/*/libip4tc.so.* usr/lib/*/libip6tc.so.* usr/lib/*/libnftnl.so.* usr/lib/*/libmnl.so.* \
	usr/lib/*/libnetfilter_conntrack.so.* usr/lib/*/libnfnetlink.so.*
# What update-alternatives does where the package is installed: without a suffix it is the front end of nftables.
for program in iptables ip6tables; do
	for action in '' -save -restore; do
		ln -s xtables-nft-multi "$folder/usr/sbin/$program-nft$action"
		ln -s xtables-legacy-multi "$folder/usr/sbin/$program-legacy$action"
		ln -s xtables-nft-multi "$folder/usr/sbin/$program$action"
	done
done
# Where the older variant has its lock.
mkdir -p "$folder/run"

# Their licences, and their versions as scanners of images look for them.
mkdir -p "$folder/usr/share/common-licenses" "$folder/var/lib/dpkg/status.d"
for package in $packages; do
	cp --parents -t "$folder" "usr/share/doc/$package/copyright"
	dpkg-deb --field "$work/packages/$package"_*.deb >"$folder/var/lib/dpkg/status.d/$package"
done
for licence in $(cat "$folder"/usr/share/doc/*/copyright | grep -o 'common-licenses/[A-Za-z0-9.-]*[A-Za-z0-9]' | sort -u); do
	cp "usr/share/$licence" "$folder/usr/share/common-licenses"
done
