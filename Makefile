# SPDX-License-Identifier: Apache-2.0
SHELL := /bin/bash
CLANG ?= clang-19
export BPF_CLANG := $(CLANG)
export BPF_STRIP := $(subst clang,llvm-strip,$(CLANG))
MULTIARCH := $(shell gcc -print-multiarch 2>/dev/null)
export BPF_CFLAGS := -O2 -g -mcpu=v3 -Wall -Wextra -Werror -I/usr/include/$(MULTIARCH) -I$(CURDIR)/bpf
generate:
	go generate ./...
