// SPDX-License-Identifier: Apache-2.0

package main

// What the programs of the edge are timed with; see internal/bpf/generate.go.
//
