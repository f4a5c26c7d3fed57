# Two commands matter: `make demo` and `make test`. Each does all of its own set-up on a Debian machine that
# has Rust and root.

# Every system package that anything below needs.
PACKAGES := build-essential ca-certificates conntrack iproute2 iptables libcap2-bin nftables procps util-linux
# And what the guest needs in which tests run on an older kernel. The kernel itself is only unpacked: tests/vm/base.
VM_PACKAGES := busybox-static cpio kmod qemu-system-x86

CARGO ?= cargo

# The static binary is made for this target, with musl: no library is looked for at run time.
STATIC_TARGET ?= $(shell uname -m)-unknown-linux-musl
STATIC_OUTPUT ?= target/static/portolan

.PHONY: demo test bench lint doc unit vm-test deny fuzz static image docs packages clean

## See Services work, in network namespaces on this machine.
demo: packages
	$(CARGO) build --quiet --locked -p portolan
	target/debug/portolan demo

## Format, lints, docs and every test, packet tests included, some of them on Debian's kernel, too. Needs root.
test: packages target/tools/promtool lint doc unit
	@$(MAKE) --no-print-directory vm-test

unit: export PATH := $(abspath target/tools):$(PATH)
unit:
	@test "$$(id -u)" = 0 || { echo "make test needs root: packet tests make network namespaces" >&2; exit 1; }
	$(CARGO) test --quiet --locked --workspace --all-features

## Tests of the kernel, a random world and the proxy on Debian 12's kernel (6.1) under qemu. Without the slowest:
## everything in the guest is emulated.
VM_SKIP := contention edits:: limits:: priority:: restart:: the_memory_of what_others_do
vm-test: PACKAGES += $(VM_PACKAGES)
vm-test: packages
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
bench: packages static
	$(CARGO) build --quiet --locked --release -p portolan -p portolan-bench
	target/release/portolan-bench --static-binary $(STATIC_OUTPUT)

## One static binary in target/static, for images (deploy/image) and for hosts of any distribution.
static: PACKAGES := build-essential ca-certificates musl-tools
static: packages
	rustup target list --installed | grep -qx $(STATIC_TARGET) || rustup target add $(STATIC_TARGET)
	$(CARGO) build --quiet --locked --release -p portolan --target $(STATIC_TARGET)
	mkdir -p $(dir $(STATIC_OUTPUT))
	cp target/$(STATIC_TARGET)/release/portolan $(STATIC_OUTPUT)
	@ls -l $(STATIC_OUTPUT)

## An image of the static binary, for docker load, podman load or ctr images import. Needs root.
image: static packages
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
fuzz: packages
	command -v cargo-fuzz >/dev/null || $(CARGO) install --locked cargo-fuzz
	for target in $$(cd fuzz && ls fuzz_targets | sed 's/\.rs$$//'); do \
		RUSTC_BOOTSTRAP=1 $(CARGO) fuzz run --sanitizer none $$target -- -max_total_time=$(FUZZ_SECONDS) || exit 1; \
	done

# Only this program of a package whose installation would start a service.
target/tools/promtool:
	mkdir -p $(@D)
	cd $(@D) && { apt-get download -qq prometheus || { apt-get update -qq && apt-get download -qq prometheus; }; } \
		&& dpkg-deb --fsys-tarfile prometheus_*.deb | tar xf - --strip-components=3 ./usr/bin/promtool \
		&& rm prometheus_*.deb && touch promtool

## Installs what is missing; needs root only then.
packages:
	@missing=$$(dpkg-query -W -f='$${Package} $${db:Status-Status}\n' $(PACKAGES) 2>/dev/null \
		| awk '$$2 == "installed" { print $$1 }' | sort > /tmp/.portolan-have.$$$$; \
		printf '%s\n' $(PACKAGES) | sort | comm -23 - /tmp/.portolan-have.$$$$; rm -f /tmp/.portolan-have.$$$$); \
	if [ -n "$$missing" ]; then \
		echo "installing $$missing"; \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing >/dev/null; \
	fi

clean:
	$(CARGO) clean
