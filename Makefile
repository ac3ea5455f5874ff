# SPDX-License-Identifier: Apache-2.0
#
# make demo     build, and see Services work in a lab of network namespaces
# make test     everything that has to pass before a change is merged
# make          build bin/beeline

SHELL := /bin/bash
.DEFAULT_GOAL := build
.DELETE_ON_ERROR:

CLANG ?= clang-19
CLANG_FORMAT ?= clang-format-19
# A Go older than go.mod asks for fetches the toolchain named there.
export GOTOOLCHAIN ?= auto
# BPF objects are compiled against the kernel's UAPI headers of this machine.
export BPF_CLANG := $(CLANG)
export BPF_STRIP := $(subst clang,llvm-strip,$(CLANG))
export BPF_CFLAGS = -O2 -g -fno-strict-aliasing -mcpu=v3 -Wall -Wextra -Wno-unused-parameter -Werror -I/usr/include/$(shell uname -m)-linux-gnu -I$(CURDIR)/bpf

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
BPF_SOURCES := $(wildcard bpf/*.c bpf/lib/*.h)
BENCH_SOURCES := $(wildcard test/bench/bpf/*.c test/bench/bpf/*.h)
C_SOURCES := $(BPF_SOURCES) $(BENCH_SOURCES) $(wildcard test/*/testdata/*.c)
GENERATED := internal/datapath/sock_bpfel.go internal/datapath/bind_bpfel.go internal/datapath/sweep_bpfel.go \
	internal/datapath/edgetc_bpfel.go internal/datapath/edgexdp_bpfel.go internal/datapath/edgeslot_bpfel.go \
	internal/datapath/xdpdispatcher_bpfel.go
BENCH_GENERATED := test/bench/costxdp_bpfel.go test/bench/costtc_bpfel.go test/bench/sockmap_bpfel.go \
	test/bench/rates_bpfel.go test/bench/ratestc_bpfel.go
SCRIPTS := scripts/setup scripts/kernels test/kernels/guest test/kernels/instructions .ci/run test/edge/testdata/systemd
# test/churn stands for a node under a load of its own, so nothing runs beside it.
MOST_PACKAGES = $(filter-out %/test/churn,$(shell go list ./...))
# A module of its own, for Kubernetes is large. Linters and vet leave its program
# out: they would analyse all of Kubernetes for two short files.
CLUSTER = test/cluster
CLUSTER_PACKAGES = $(filter-out %/cmd/controlplane,$(shell go -C $(CLUSTER) list ./...))
# -v, for they print figures: cases, memory, times.
CLUSTER_TEST = BEELINE_PROGRAM=$(CURDIR)/bin/beeline go -C $(CLUSTER) test -v -p 1 -vet=off
KUBERNETES_VERSION = $(shell sed -n 's/^\tk8s.io\/kubernetes v/v/p' $(CLUSTER)/go.mod)

.PHONY: help setup generate build controlplane demo test test-full test-kernels lint bin/bench bench bench-endurance bench-instructions bench-docs clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

setup: ## install what the build and the tests need (Debian 12, root)
	@scripts/setup

$(GENERATED) &: $(BPF_SOURCES) internal/datapath/generate.go go.mod Makefile | setup
	go generate ./internal/datapath

$(BENCH_GENERATED) &: $(BPF_SOURCES) $(BENCH_SOURCES) test/bench/generate.go go.mod Makefile | setup
	go generate ./test/bench

generate: $(GENERATED) $(BENCH_GENERATED) ## compile bpf/ and make the Go types of its structures

build: generate ## build bin/beeline, statically linked
	CGO_ENABLED=0 go build -trimpath -ldflags '-X main.version=$(VERSION)' -o bin/beeline ./cmd/beeline

build/controlplane: $(CLUSTER)/go.mod $(CLUSTER)/go.sum $(wildcard $(CLUSTER)/cmd/controlplane/*.go)
	scripts/setup --modules $(CLUSTER)
	go -C $(CLUSTER) build -ldflags '-s -w -X k8s.io/component-base/version.gitVersion=$(KUBERNETES_VERSION)' \
		-o $(CURDIR)/$@ ./cmd/controlplane
	@touch $@

controlplane: build/controlplane ## build the Kubernetes that tests and benchmarks run (minutes, once)

demo: build ## show Services at work in a lab (root)
	CGO_ENABLED=0 go build -o bin/demo ./test/demo
	bin/demo --program bin/beeline --manifests examples

test: build lint controlplane ## lint, and all tests but the slow ones (root)
	go test -timeout 30m $(MOST_PACKAGES)
	go test -timeout 5m ./test/churn
	scripts/kernels --smoke
	$(CLUSTER_TEST) -timeout 20m $(CLUSTER_PACKAGES)

test-full: build lint controlplane ## all tests, with the race detector where it tells something (root)
	go test -timeout 30m -race ./internal/...
	go test -timeout 60m -count=1 $(MOST_PACKAGES)
	go test -timeout 5m -count=1 ./test/churn
	$(CLUSTER_TEST) -timeout 30m -count=1 $(CLUSTER_PACKAGES)
	$(CLUSTER_TEST) -timeout 30m ./judge -run TheSame -seed=0 -scenarios=650
	scripts/kernels
	$(MAKE) bench-instructions

test-kernels: build ## tests under Debian's Linux 6.1 and 6.12, emulated (an hour or two for each)
	scripts/kernels

lint: generate ## vet, staticcheck, shellcheck, formats
	@unformatted=$$(gofmt -l cmd internal test) && test -z "$$unformatted" || { echo "run gofmt -w on: $$unformatted"; exit 1; }
	$(CLANG_FORMAT) --dry-run -Werror $(C_SOURCES)
	go vet ./...
	go tool staticcheck ./...
	cd $(CLUSTER) && go vet $(CLUSTER_PACKAGES) && "$$(go -C $(CURDIR) tool -n staticcheck)" $(CLUSTER_PACKAGES)
	shellcheck $(SCRIPTS)

bin/bench: generate
	CGO_ENABLED=0 go build -o $@ ./test/bench

bench: build bin/bench controlplane ## measure, print figures with their spread, keep and draw them in build/bench (root)
	@mkdir -p build/bench
	bin/bench --program bin/beeline --output build/bench/results.json
	bin/bench chart build/bench/results.json --out build/bench

bench-endurance: build bin/bench controlplane ## what load and floods over time do to connections, by Beeline, iptables and kube-proxy (root, 40 minutes)
	@mkdir -p build/bench
	bin/bench --program bin/beeline --part endurance --output build/bench/endurance.json

bench-instructions: build bin/bench ## count a packet's instructions by Beeline, iptables and IPVS, in an emulated machine
	scripts/kernels --instructions build/bench/instructions.json

RESULTS ?= build/bench/results.json
bench-docs: bin/bench ## put RESULTS of a benchmark and their charts, or those of the part endurance, into docs/benchmarks.md
	bin/bench doc $(RESULTS) --into docs/benchmarks.md

clean: ## remove what was built
	rm -rf bin build internal/datapath/*_bpfel.* test/bench/*_bpfel.*
