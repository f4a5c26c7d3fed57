# Two commands matter: `make demo` and `make test`. Each does all of its own set-up on a Debian machine that
# has Rust and root.

# The system packages that targets need, each list installed by `packages-NAME`.
PACKAGES_base := build-essential ca-certificates conntrack iproute2 iptables libcap2-bin nftables procps util-linux
# For systemd-analyze. Without systemd-sysv it is no machine's first process.
PACKAGES_test := systemd
PACKAGES_static := build-essential ca-certificates musl-tools
PACKAGES_image := libcap2-bin
# What the guest needs in which tests run on an older kernel. The kernel itself is only unpacked: tests/vm/base.
PACKAGES_vm := busybox-static cpio kmod qemu-system-x86
PACKAGES := $(addprefix packages-,base test static image vm)

# Programs of packages whose installation would do more: start a service, or collide with another kubectl.
TOOLS := target/tools/etcd target/tools/kubectl target/tools/promtool
# The kubectl of the newest stable Debian, beside that of this machine's.
NEWER := trixie
NEWER_KUBECTL := target/tools/$(NEWER)/kubectl

CARGO ?= cargo

# The static binary is made for this target, with musl: no library is looked for at run time.
STATIC_TARGET ?= $(shell uname -m)-unknown-linux-musl
STATIC_OUTPUT ?= target/static/portolan

.PHONY: demo test bench lint doc unit vm-test deny fuzz static image docs packages $(PACKAGES) clean
# Cargo is parallel by itself, and packages are installed before something is built.
.NOTPARALLEL:

## See Services work, in network namespaces on this machine.
demo: packages-base
	$(CARGO) build --quiet --locked -p portolan
	target/debug/portolan demo

## Format, lints, docs and every test, packet tests included, some of them on Debian's kernel, too. Needs root.
test: packages-base lint doc vm-test unit

unit: export PATH := $(abspath target/tools):$(abspath target/tools/$(NEWER)):$(PATH)
# A test that finds one of these missing fails; otherwise it would leave itself out.
unit: export PORTOLAN_TEST_TOOLS := systemd-analyze $(notdir $(TOOLS))
unit: packages-base packages-test $(TOOLS) $(NEWER_KUBECTL)
	@test "$$(id -u)" = 0 || { echo "make test needs root: packet tests make network namespaces" >&2; exit 1; }
	$(CARGO) test --quiet --locked --workspace --all-features

## Tests of the kernel, a random world and the proxy on Debian 12's kernel (6.1) under qemu. Without the slowest:
## everything in the guest is emulated.
VM_SKIP := contention edits:: limits:: priority:: restart:: the_memory_of what_others_do
vm-test: packages-base packages-vm
	$(CARGO) build --quiet --locked --workspace --all-features
	PORTOLAN_ROUNDS=$${PORTOLAN_ROUNDS:-1} $(CARGO) test --quiet --locked --workspace --all-features \
		--config 'target."cfg(all())".runner = "$(CURDIR)/tests/vm/run"' \
		--test kernel --test conntrack --test random -- $(addprefix --skip ,$(VM_SKIP))
	VM_PROGRAMS=$(CURDIR)/target/debug/portolan tests/vm/run tests/vm/proxy $(CURDIR)/target/debug/portolan

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --quiet --locked --workspace --all-targets --all-features -- -D warnings
	$(CARGO) check --quiet --locked --manifest-path fuzz/Cargo.toml

doc:
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --quiet --locked --workspace --no-deps --all-features

## The table of docs/performance.md. Needs root, and a quiet machine.
bench: packages-base static
	$(CARGO) build --quiet --locked --release -p portolan -p portolan-bench
	target/release/portolan-bench --static-binary $(STATIC_OUTPUT)

## One static binary in target/static, for images (deploy/image) and for hosts of any distribution.
static: packages-static
	rustup target list --installed | grep -qx $(STATIC_TARGET) || rustup target add $(STATIC_TARGET)
	$(CARGO) build --quiet --locked --release -p portolan --target $(STATIC_TARGET)
	mkdir -p $(dir $(STATIC_OUTPUT))
	cp target/$(STATIC_TARGET)/release/portolan $(STATIC_OUTPUT)
	@ls -l $(STATIC_OUTPUT)

## An image of the static binary, for docker load, podman load or ctr images import. Needs root.
image: static packages-image
	deploy/image/build.sh $(STATIC_OUTPUT) target/portolan-image.tar

## The book of docs/ as HTML in target/book. Installs mdbook if it is missing, which takes some minutes.
docs:
	command -v mdbook >/dev/null || $(CARGO) install --locked mdbook
	mdbook build docs --dest-dir $(abspath target/book)

## Licences, bans and sources of every dependency.
deny:
	command -v cargo-deny >/dev/null || $(CARGO) install --locked cargo-deny
	$(CARGO) deny --locked check bans licenses sources

## Every fuzz target for FUZZ_SECONDS each.
FUZZ_SECONDS ?= 60
fuzz: packages-base
	command -v cargo-fuzz >/dev/null || $(CARGO) install --locked cargo-fuzz
	for target in $$(cd fuzz && ls fuzz_targets | sed 's/\.rs$$//'); do \
		RUSTC_BOOTSTRAP=1 $(CARGO) fuzz run --sanitizer none $$target -- -max_total_time=$(FUZZ_SECONDS) || exit 1; \
	done

target/tools/etcd: PACKAGE := etcd-server
target/tools/kubectl: PACKAGE := kubernetes-client
target/tools/promtool: PACKAGE := prometheus
$(TOOLS):
	mkdir -p $(@D)
	cd $(@D) && { apt-get download -qq $(PACKAGE) || { apt-get update -qq && apt-get download -qq $(PACKAGE); }; } \
		&& dpkg-deb --fsys-tarfile $(PACKAGE)_*.deb | tar xf - --strip-components=3 ./usr/bin/$(@F) \
		&& rm $(PACKAGE)_*.deb && touch $(@F)

# Its lists and its idea of what is installed are its own: nothing of this machine's apt is touched.
$(NEWER_KUBECTL):
	mkdir -p $(@D)/apt/lists/partial $(@D)/apt/cache/archives/partial
	echo 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian $(NEWER) main' \
		> $(@D)/apt/sources.list
	cd $(@D) && apt="-o Dir::Etc::SourceList=$(abspath $(@D))/apt/sources.list -o Dir::Etc::SourceParts=/dev/null \
		-o Dir::State::Lists=$(abspath $(@D))/apt/lists -o Dir::Cache=$(abspath $(@D))/apt/cache \
		-o Dir::State::Status=/dev/null -o APT::Sandbox::User=root" \
		&& apt-get $$apt update -qq && apt-get $$apt download -qq kubectl \
		&& dpkg-deb --fsys-tarfile kubectl_*.deb | tar xf - --strip-components=3 ./usr/bin/kubectl \
		&& rm -r kubectl_*.deb apt && touch kubectl

## Installs what is missing, for one target or all of them; needs root only then.
packages: $(PACKAGES)
$(PACKAGES): packages-%:
	@missing=$$(for package in $(PACKAGES_$*); do \
		dpkg-query -W -f='$${db:Status-Status}\n' $$package 2>/dev/null | grep -qx installed || echo $$package; \
	done); \
	if [ -n "$$missing" ]; then \
		echo "installing" $$missing; \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
			apt-get install -y -qq --no-install-recommends --no-remove $$missing >/dev/null; \
	fi

clean:
	$(CARGO) clean
