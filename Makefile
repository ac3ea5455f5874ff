# SPDX-License-Identifier: Apache-2.0
#
# make demo     build, and see Services work in a lab of network namespaces
# make check    lint and unit tests, for daily work
# make test     everything that has to pass before a change is merged
# make          build bin/beeline and bin/beeline-lab

SHELL := /bin/bash
.DEFAULT_GOAL := build
.DELETE_ON_ERROR:

CLANG ?= clang-19
CLANG_FORMAT ?= clang-format-19
# A Go older than go.mod requires downloads the toolchain named there.
export GOTOOLCHAIN ?= auto
# One set of flags for program, linters and tests: each package is compiled once for all of them.
export CGO_ENABLED ?= 0
export GOFLAGS ?= -trimpath
# BPF objects are compiled against the kernel's UAPI headers of this machine.
export BPF_CLANG := $(CLANG)
export BPF_STRIP := $(subst clang,llvm-strip,$(CLANG))
export BPF_CFLAGS = -O2 -g -fno-strict-aliasing -mcpu=v3 -Wall -Wextra -Wno-unused-parameter -Werror -I/usr/include/$(shell uname -m)-linux-gnu -I$(CURDIR)/bpf

# Random tests draw something else at each commit (test/seed).
export BEELINE_SEED ?= $(shell echo $$((1 + 0x$$(git rev-parse --short=8 HEAD 2>/dev/null || echo 0))))

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
BPF_SOURCES := $(wildcard bpf/*.c bpf/*/*.h test/*/*.bpf.c)
# A module of its own, so that its plotting library is no dependency of the product.
BENCH = bench
BENCH_TEST = BEELINE_PROGRAM=$(CURDIR)/bin/beeline go -C $(BENCH) test -json -vet=off -count=1
BENCH_SOURCES := $(wildcard bench/bpf/*.c bench/bpf/*.h bench/*/*.bpf.c)
C_SOURCES := $(BPF_SOURCES) $(BENCH_SOURCES) $(wildcard test/*/testdata/*.c) $(wildcard hoststack/programs/*.c)
GENERATED := internal/bpf/sock_bpfel.go internal/bpf/bind_bpfel.go internal/bpf/sockgc_bpfel.go internal/bpf/sockstats_bpfel.go \
	internal/bpf/connectexplain_bpfel.go internal/bpf/edgetc_bpfel.go internal/bpf/edgemigrate_bpfel.go internal/bpf/edgel3_bpfel.go internal/bpf/edgexdp_bpfel.go internal/bpf/pod_bpfel.go internal/bpf/podnetkit_bpfel.go internal/bpf/podl3_bpfel.go internal/bpf/offload_bpfel.go internal/bpf/offloadl3_bpfel.go internal/bpf/mesh_bpfel.go internal/bpf/meshinbound_bpfel.go internal/bpf/meshreroute_bpfel.go internal/bpf/xdpslot_bpfel.go \
	internal/bpf/xdpdispatch/xdpdispatcher_bpfel.go test/counter/counter_bpfel.go test/shared/shared_bpfel.go test/shared/meshpolicy_bpfel.go
GENERATED_FOLDERS := $(sort $(dir $(GENERATED)))
BENCH_GENERATED := bench/testrun/costxdp_bpfel.go bench/testrun/costtc_bpfel.go bench/balancer/sockmap_bpfel.go bench/pods/podsredirect_bpfel.go \
	bench/forward/rates_bpfel.go bench/forward/ratestc_bpfel.go
BENCH_FOLDERS := $(sort $(dir $(BENCH_GENERATED)))
SCRIPTS := hoststack/programs/run scripts/audit scripts/floors scripts/hoststack scripts/manifests scripts/includes scripts/walls scripts/links scripts/sentences scripts/words scripts/setup scripts/mutants scripts/suites scripts/envoy scripts/kernels test/kernels/guest test/kernels/instructions .ci/run test/edge/testdata/systemd
# Runs commands: hides what passes, reports progress every 30 seconds, and sums up at the end.
SUITE = bin/suite
# lint vets all packages. The program is the one that users get. Go runs a test of the first module again if a file of
# that module has changed that it read or asked for (node.Build, for example). It sees no file outside of a test's module:
# tests of the others always run (-count=1).
GO_TEST = BEELINE_PROGRAM=$(CURDIR)/bin/beeline go test -json -vet=off
PACKAGES_TEST = $(GO_TEST) -p $(shell echo $$(($$(nproc) + 1))) -timeout 60m
# test/churn simulates a node under load, so nothing else runs at the same time. The slowest packages
# start first, and one more than there are CPUs, because tests wait. The emulated machine has one CPU and never
# waits, and the benchmark runs one part after the other: they get the time that the packages leave. The tests of
# the cluster often wait, so they run beside those of the deployment.
# -short skips tests of the cluster and the benchmark that take a minute or more, and runs most tests of the edge in
# one of their variants; test-full runs all.
ALL_PACKAGES = $(shell go list ./...)
LONG_PACKAGES = $(addprefix $(shell go list -m)/,test/edge test/socket test/soak test/packet test/pod test/offload test/mesh test/twin internal/bpf)
MOST_PACKAGES = $(LONG_PACKAGES) $(filter-out %/test/churn $(LONG_PACKAGES),$(ALL_PACKAGES))
# A module of its own, because Kubernetes is large. Linters and vet skip its program:
# they would analyse all of Kubernetes for two short files.
CLUSTER = test/cluster
CLUSTER_PACKAGES = $(filter-out %/cmd/controlplane,$(shell go -C $(CLUSTER) list ./...))
CLUSTER_TEST = BEELINE_PROGRAM=$(CURDIR)/bin/beeline go -C $(CLUSTER) test -json -vet=off -count=1
# A module of its own, because Prometheus is large: it is built without its service discoveries.
MONITORING = test/monitoring
MONITORING_TEST = BEELINE_PROGRAM=$(CURDIR)/bin/beeline go -C $(MONITORING) test -json -vet=off -count=1
PROMETHEUS_VERSION = $(shell sed -n 's/^\tgithub.com\/prometheus\/prometheus v/v/p' $(MONITORING)/go.mod | cut -d' ' -f1)
# A module of its own, because container runtimes and kustomize are large. It runs the control plane of the cluster's.
DEPLOY = test/deploy
DEPLOY_TEST = BEELINE_PROGRAM=$(CURDIR)/bin/beeline go -C $(DEPLOY) test -json -vet=off -count=1
# A module of its own: the kube-proxy of the next Kubernetes, for the judge alone.
KUBE_PROXY = test/kubeproxy
KUBE_PROXY_VERSION = $(shell sed -n 's/^\tk8s.io\/kubernetes v/v/p' $(KUBE_PROXY)/go.mod)
KUBERNETES_VERSION = $(shell sed -n 's/^\tk8s.io\/kubernetes v/v/p' $(CLUSTER)/go.mod)

# The image has the date of the commit, so that the same commit gives the same image.
IMAGE ?= beeline.invalid/beeline:$(subst +,-,$(VERSION))
API_SERVER ?=
IMAGE_DATE := $(shell git log -1 --format=%ct 2>/dev/null || echo 0)

.PHONY: help setup programs generate build hoststack image manifests controlplane kubeproxy monitoring demo check test test-full test-kernels soak fuzz mutants audit lint bin/bench bench bench-endurance bench-instructions bench-docs clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

setup: ## install what the build and the tests need (Debian 12, root)
	@scripts/setup

$(GENERATED) &: $(BPF_SOURCES) $(shell grep -l '^//go:generate' $(GENERATED_FOLDERS:=*.go)) go.mod Makefile | setup $(SUITE)
	@$(SUITE) --quiet 'compiling the BPF programs=go generate $(GENERATED_FOLDERS:%=./%)'

$(BENCH_GENERATED) &: $(BPF_SOURCES) $(BENCH_SOURCES) $(shell grep -l '^//go:generate' $(BENCH_FOLDERS:=*.go)) bench/go.mod Makefile | setup $(SUITE)
	scripts/setup --modules $(BENCH)
	@$(SUITE) --quiet "compiling the benchmark's BPF programs=go -C $(BENCH) generate ./..."

$(SUITE): $(filter-out %_test.go,$(wildcard test/suite/*.go)) go.mod | setup
	go build -o $@ ./test/suite

# Pages generated from the program itself: cmd/beeline's tests compare them.
DOCS_SOURCES := $(filter-out %_test.go,$(wildcard cmd/beeline/*.go internal/agent/*.go internal/shortcut/*/*.go internal/report/condition/*.go internal/report/metrics/*.go)) cmd/beeline/reference_test.go cmd/beeline/pages_test.go
build/man: $(DOCS_SOURCES) $(GENERATED) | setup $(SUITE)
	@$(SUITE) --quiet "reference and manual pages=go test -count=1 -vet=off ./cmd/beeline -run TestGeneratedDocs -update -man $(CURDIR)/$@"
	@touch $@

programs: $(GENERATED) $(BENCH_GENERATED)

# The licences of what is linked into the program and the library, for the image.
build/THIRD-PARTY: go.mod go.sum hoststack/Cargo.lock $(wildcard deploy/licences/*.go) | setup $(SUITE)
	@$(SUITE) --quiet 'licences of others=go run ./deploy/licences --out $@'

generate: programs build/man build/THIRD-PARTY ## compile bpf/ and make the Go types of its structures; write docs/operate/reference.md, conditions.md and metrics.md, build/man and build/THIRD-PARTY

build: $(GENERATED) ## build bin/beeline and bin/beeline-lab, statically linked
	@$(SUITE) --quiet "bin/beeline=CGO_ENABLED=0 go build -v -trimpath -ldflags '-X main.version=$(VERSION)' -o bin/beeline ./cmd/beeline" \
		--quiet "bin/beeline-lab=CGO_ENABLED=0 go build -v -trimpath -o bin/beeline-lab ./cmd/beeline-lab"

hoststack: | setup $(SUITE) ## build bin/libbeeline_hoststack.so, the preload library, and bin/beeline-pingpong
	@$(SUITE) --quiet 'host stack=scripts/hoststack build'

image: build hoststack build/THIRD-PARTY ## build build/beeline-image.tar, a container image (OCI layout and docker archive) named IMAGE
	@go run ./deploy/image --program bin/beeline --library bin/libbeeline_hoststack.so --licence LICENSE --third-party build/THIRD-PARTY --version '$(VERSION)' --created $(IMAGE_DATE) \
		--reference '$(IMAGE)' --arch "$$(go env GOARCH)" --out build/beeline-image.tar

NODES ?= labelled
# Variables of the command line that `make manifests` does not have: it would be silent about NODE=all.
NO_MANIFEST_VARIABLES = $(filter-out IMAGE=% API_SERVER=% NODES=% VERSION=% IMAGE_DATE=%,$(MAKEOVERRIDES))
manifests: ## write build/beeline.yaml, and build/beeline-hoststack.yaml for the host stack in pods, for `kubectl apply -f`, and build/beeline-cleanup.yaml: IMAGE=REGISTRY/NAME:TAG API_SERVER=ADDRESS[:PORT] NODES=labelled|all
	$(if $(NO_MANIFEST_VARIABLES),$(error make manifests has no variable $(firstword $(subst =, ,$(NO_MANIFEST_VARIABLES))): give IMAGE, API_SERVER or NODES))
	@mkdir -p build
	@scripts/manifests '$(if $(filter-out file,$(origin IMAGE)),$(IMAGE))' '$(API_SERVER)' '$(NODES)' >build/beeline.yaml.tmp
	@scripts/manifests --cleanup '$(IMAGE)' '$(API_SERVER)' >build/beeline-cleanup.yaml.tmp
	@scripts/manifests --hoststack '$(IMAGE)' >build/beeline-hoststack.yaml.tmp
	@mv build/beeline.yaml.tmp build/beeline.yaml
	@mv build/beeline-hoststack.yaml.tmp build/beeline-hoststack.yaml
	@mv build/beeline-cleanup.yaml.tmp build/beeline-cleanup.yaml
	@echo 'build/beeline.yaml: the agent with image $(IMAGE) and API server $(API_SERVER), on $(if $(filter all,$(NODES)),all nodes,nodes with the label beeline=true)'
	@echo 'build/beeline-cleanup.yaml: a Job that removes it from one node'
	@echo 'build/beeline-hoststack.yaml: the library for pods, which is optional'

build/controlplane: $(CLUSTER)/go.mod $(CLUSTER)/go.sum $(wildcard $(CLUSTER)/cmd/controlplane/*.go) | setup $(SUITE)
	scripts/setup --modules $(CLUSTER)
	@echo "Kubernetes $(KUBERNETES_VERSION) is built now: once, about 2,500 packages, 10 minutes or more"
	@$(SUITE) --quiet "Kubernetes=go -C $(CLUSTER) build -v -ldflags '-s -w -X k8s.io/component-base/version.gitVersion=$(KUBERNETES_VERSION)' \
		-o $(CURDIR)/$@ ./cmd/controlplane"
	@touch $@

build/kubeproxy: $(KUBE_PROXY)/go.mod $(KUBE_PROXY)/go.sum $(KUBE_PROXY)/main.go | setup $(SUITE)
	scripts/setup --modules $(KUBE_PROXY)
	@$(SUITE) --quiet "kube-proxy $(KUBE_PROXY_VERSION)=go -C $(KUBE_PROXY) build -v -ldflags '-s -w -X k8s.io/component-base/version.gitVersion=$(KUBE_PROXY_VERSION)' \
		-o $(CURDIR)/$@ ."
	@touch $@

kubeproxy: build/kubeproxy ## build the kube-proxy of the next Kubernetes, which the judge compares with in test-full

controlplane: build/controlplane ## build the Kubernetes that tests and benchmarks run (minutes, once)

build/monitoring: $(MONITORING)/go.mod $(MONITORING)/go.sum | setup $(SUITE)
	scripts/setup --modules $(MONITORING)
	@echo "Prometheus $(PROMETHEUS_VERSION) is built now: once, about 900 packages, 3 minutes or more"
	@mkdir -p $@
	@$(SUITE) --quiet "Prometheus=go -C $(MONITORING) build -v -tags remove_all_sd -ldflags '-s -w' -o $(CURDIR)/$@/ \
		github.com/prometheus/prometheus/cmd/promtool github.com/prometheus/prometheus/cmd/prometheus"
	@touch $@

monitoring: build/monitoring ## build the Prometheus and the promtool that tests run (minutes, once)

build/envoy: test/mesh/requirements.txt scripts/envoy | setup
	scripts/envoy
	@touch $@

demo: build ## show Services at work in a lab (root)
	CGO_ENABLED=0 go build -o bin/demo ./test/demo
	bin/demo --program bin/beeline --lab-program bin/beeline-lab --manifests examples

check: lint ## lint, and the unit tests of internal/ and cmd/, for daily work (root)
	@$(SUITE) --log build/check.json --go 'unit tests=$(GO_TEST) -timeout 10m ./internal/... ./cmd/...'

test: build hoststack lint controlplane monitoring build/envoy ## lint, and all tests except the slow ones (root)
	@$(SUITE) --log build/test.json \
		--go 'packages=$(PACKAGES_TEST) -short $(MOST_PACKAGES)' \
		--beside --run 'Linux 6.1, emulated=scripts/kernels --smoke' \
		--then --go 'benchmark=$(BENCH_TEST) -short -timeout 60m ./...' \
		--go 'churn=$(GO_TEST) -timeout 15m ./test/churn -churn=15s' \
		--go 'cluster=$(CLUSTER_TEST) -short -timeout 40m $(CLUSTER_PACKAGES)' \
		--beside --run 'host stack=scripts/hoststack test' \
		--then --go 'monitoring=$(MONITORING_TEST) -timeout 10m ./...' \
		--beside --go 'deployment=$(DEPLOY_TEST) -short -timeout 20m ./...'

test-full: build hoststack lint controlplane kubeproxy monitoring build/envoy ## all tests, also those that -short skips above, with the race detector where it helps (root)
	@$(SUITE) --log build/test-full.json \
		--go 'races=CGO_ENABLED=1 $(GO_TEST) -timeout 30m -race ./internal/...' \
		--go 'packages=$(PACKAGES_TEST) -count=1 $(MOST_PACKAGES)' \
		--go 'churn=$(GO_TEST) -timeout 15m -count=1 ./test/churn' \
		--run 'host stack=scripts/hoststack test' \
		--run 'suites of others=scripts/hoststack suites' \
		--go 'benchmark=$(BENCH_TEST) -timeout 60m ./...' \
		--go 'cluster=$(CLUSTER_TEST) -timeout 40m $(CLUSTER_PACKAGES)' \
		--go 'monitoring=$(MONITORING_TEST) -timeout 10m ./...' \
		--go 'deployment=$(DEPLOY_TEST) -timeout 40m ./...' \
		--go '650 scenarios=$(CLUSTER_TEST) -timeout 40m ./judge -run TheSame -seed=0 -scenarios=650' \
		--go "judge, kube-proxy $(KUBE_PROXY_VERSION)=$(CLUSTER_TEST) -timeout 40m ./judge -run 'TheSame|TestLiveChanges' -kubeproxy=$(CURDIR)/build/kubeproxy" \
		--go 'ten minutes of reused ports=$(CLUSTER_TEST) -timeout 20m ./judge -run ReusedPorts -reuse=10m' \
		--run 'planted faults=scripts/mutants' \
		--run 'kernels, emulated=scripts/kernels' \
		--run 'instructions=$(MAKE) bench-instructions'

test-kernels: build hoststack build/envoy ## tests under Debian's Linux 6.1 and 6.12, emulated (an hour or two for each)
	scripts/kernels

# Of make soak and make fuzz; SEED=0 takes one from the clock, and prints it.
DURATION ?= 20m
FUZZTIME ?= 5m
SEED ?= 0

soak: build controlplane ## restarts, kills, floods, outages and more at random for DURATION (20m), with SEED: what clients lose (root)
	BEELINE_PROGRAM=$(CURDIR)/bin/beeline go test -count=1 -vet=off -timeout 0 -v ./test/soak -api -lasting=$(DURATION) -seed=$(SEED)

fuzz: build | setup ## random packets and calls for FUZZTIME (5m) each, with SEED: the programs against the packet model, a node's shortcuts against its stack, and rings against the kernel's sockets (root)
	go test -count=1 -vet=off -timeout 0 -v -run '^TestModel$$' ./test/packet -lasting=$(FUZZTIME) -seed=$(SEED)
	BEELINE_PROGRAM=$(CURDIR)/bin/beeline go test -count=1 -vet=off -timeout 0 -v -run '^TestWalk$$' ./test/twin -lasting=$(FUZZTIME) -seed=$(SEED)
	scripts/hoststack fuzz $(FUZZTIME) $(SEED)

# PARTS, and other arguments of scripts/mutants, which sets this up.
mutants: build ## plant small faults, and run the tests that have to notice them: PARTS="edge mesh", or all (root)
	@go build -o bin/mutants ./test/mutants
	@bin/mutants $(PARTS)

audit: | setup ## search the modules and crates for known vulnerabilities and for licences that do not fit (needs a network)
	@scripts/audit

lint: programs $(SUITE) ## vet, staticcheck, shellcheck, formats
	@scripts/setup --modules $(DEPLOY)
	@unformatted=$$(gofmt -l cmd deploy internal test $(BENCH)) && test -z "$$unformatted" || { echo "run gofmt -w on: $$unformatted"; exit 1; }
	@$(SUITE) --quiet 'clang-format=$(CLANG_FORMAT) --dry-run -Werror $(C_SOURCES)' \
		--quiet 'go vet=go vet ./...' \
		--quiet 'staticcheck=go tool staticcheck ./...' \
		--quiet 'go vet of the benchmark=go -C $(BENCH) vet ./...' \
		--quiet 'staticcheck of the benchmark=cd $(BENCH) && "$$(go -C $(CURDIR) tool -n staticcheck)" ./...' \
		--quiet 'go vet of the cluster=cd $(CLUSTER) && go vet $(CLUSTER_PACKAGES)' \
		--quiet 'staticcheck of the cluster=cd $(CLUSTER) && "$$(go -C $(CURDIR) tool -n staticcheck)" $(CLUSTER_PACKAGES)' \
		--quiet 'go vet of the monitoring=go -C $(MONITORING) vet ./...' \
		--quiet 'go vet of the deployment=go -C $(DEPLOY) vet ./...' \
		--quiet 'staticcheck of the deployment=cd $(DEPLOY) && "$$(go -C $(CURDIR) tool -n staticcheck)" ./...' \
		--quiet 'includes of bpf/=scripts/includes' \
		--quiet 'host stack=scripts/hoststack lint' \
		--quiet 'links of the documents=scripts/links' \
		--quiet 'a line for each sentence of the documents=scripts/sentences' \
		--quiet 'which folders import which=scripts/walls' \
		--quiet 'words of C, Go and Rust=scripts/words' \
		--quiet 'shellcheck=shellcheck $(SCRIPTS)'

bin/bench: programs
	CGO_ENABLED=0 go -C $(BENCH) build -o $(CURDIR)/$@ .

bench: build hoststack bin/bench controlplane build/envoy ## measure, print figures with their spread, store and draw them in build/bench (root)
	@mkdir -p build/bench
	bin/bench --program bin/beeline --output build/bench/results.json
	bin/bench chart build/bench/results.json --out build/bench

bench-endurance: build bin/bench controlplane ## what minutes of load and floods do to connections with Beeline, iptables and kube-proxy (root, 40 minutes)
	@mkdir -p build/bench
	bin/bench --program bin/beeline --part endurance --output build/bench/endurance.json

bench-instructions: build bin/bench ## count instructions per packet of Beeline, iptables and IPVS, in an emulated machine
	scripts/kernels --instructions build/bench/instructions.json

RESULTS ?= build/bench/results.json
bench-docs: bin/bench ## write RESULTS of a benchmark, or of its part endurance, and their charts into docs/measure/results.md
	bin/bench doc $(RESULTS) --into docs/measure/results.md

clean: ## remove all build products
	rm -rf bin build hoststack/target $(GENERATED_FOLDERS:=*_bpfel.*) $(BENCH_FOLDERS:=*_bpfel.*)
