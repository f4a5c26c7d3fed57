#!/bin/sh
# Builds an image without docker: one layer with a static binary and the files of a folder, in the format of `docker
# load`, `podman load`, `ctr images import` and `skopeo copy docker-archive:FILE docker://REGISTRY/...`. The same files
# give the same bytes. Needs setcap, and root, because only root may set a file's capability.
#   deploy/image/build.sh BINARY OUTPUT [NAME:TAG] [FOLDER] [PROGRAM]
# The folder is that of deploy/image/iptables.sh. Without it, or with '', the image is for the modes that do not call iptables.
# PROGRAM is the name of the binary in the image, and what a container starts: portolan-proxy if not given, or portolan.
# ARCHITECTURE is that of the binary, if it is not this machine's: amd64 or arm64.
set -eu

binary=${1:?the static binary}
output=${2:?the file to write}
name=${3:-portolan:0.1.0}
folder=${4:-}
program=${5:-portolan-proxy}

architecture=${ARCHITECTURE:-$(uname -m)}
case $architecture in
x86_64) architecture=amd64 ;;
aarch64) architecture=arm64 ;;
esac

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

umask 022
mkdir "$work/root"
[ -z "$folder" ] || cp -a "$folder/." "$work/root"
install -D -m 0755 "$binary" "$work/root/usr/local/bin/$program"
# A DaemonSet written for kube-proxy starts the command kube-proxy.
[ "$program" != portolan-proxy ] || ln -s portolan-proxy "$work/root/usr/local/bin/kube-proxy"
# Permitted, not effective: the program raises the capabilities itself, and also starts where they are not allowed.
setcap cap_net_admin,cap_net_bind_service=p "$work/root/usr/local/bin/$program"
pack() { tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --format=posix \
	--pax-option=delete=atime,delete=ctime "$@"; }
pack --xattrs --xattrs-include=security.capability -C "$work/root" -cf "$work/layer.tar" $(ls "$work/root")
layer=$(sha256sum "$work/layer.tar" | cut -d' ' -f1)

cat >"$work/config.json" <<JSON
{"architecture":"$architecture","os":"linux","created":"1970-01-01T00:00:00Z",
"config":{"User":"0:0","Env":["PATH=/usr/local/bin:/usr/sbin:/usr/bin"],"Entrypoint":["/usr/local/bin/$program"]},
"rootfs":{"type":"layers","diff_ids":["sha256:$layer"]},
"history":[{"created":"1970-01-01T00:00:00Z","created_by":"deploy/image/build.sh"}]}
JSON
config=$(sha256sum "$work/config.json" | cut -d' ' -f1)
mv "$work/layer.tar" "$work/$layer.tar"
mv "$work/config.json" "$work/$config.json"
printf '[{"Config":"%s.json","RepoTags":["%s"],"Layers":["%s.tar"]}]\n' "$config" "$name" "$layer" \
	>"$work/manifest.json"
pack -C "$work" -cf "$output" manifest.json "$config.json" "$layer.tar"
echo "$output: $name, sha256:$config"
