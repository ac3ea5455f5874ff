// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"beeline.io/beeline/internal/bpf"
)

// bpfObjects are all BPF objects whose maps the components declare.
var bpfObjects = map[string]func() (*ebpf.CollectionSpec, error){
	"sock": bpf.LoadSock, "bind": bpf.LoadBind, "sock_gc": bpf.LoadSockGC, "sock_stats": bpf.LoadSockStats, "connect_explain": bpf.LoadConnectExplain,
	"edge_tc": bpf.LoadEdgeTC, "edge_l3": bpf.LoadEdgeL3, "edge_xdp": bpf.LoadEdgeXDP, "edge_migrate": bpf.LoadEdgeMigrate, "xdp_slot": bpf.LoadXDPSlot,
	"pod": bpf.LoadPod, "pod_netkit": bpf.LoadPodNetkit, "pod_l3": bpf.LoadPodL3, "offload": bpf.LoadOffload, "offload_l3": bpf.LoadOffloadL3,
	"mesh": bpf.LoadMesh, "mesh_inbound": bpf.LoadMeshInbound, "mesh_reroute": bpf.LoadMeshReroute,
}

// declarations returns the declared tables and constants.
func declarations() (tables, constants map[string]bool) {
	tables, constants = map[string]bool{}, map[string]bool{}
	for _, c := range Components().BPF() {
		for _, table := range c.Tables {
			tables[table.Name] = true
		}
		for name := range c.Constants {
			constants[name] = true
		}
	}
	return tables, constants
}

// TestRegistryHasAllMaps: each map and constant of an object is declared, and each declared one is in an object.
func TestRegistryHasAllMaps(t *testing.T) {
	tables, constants := declarations()
	used, set := map[string]bool{}, map[string]bool{}
	for object, load := range bpfObjects {
		spec, err := load()
		if err != nil {
			t.Fatal(err)
		}
		for name := range spec.Maps {
			if used[name] = true; !tables[name] && !strings.HasPrefix(name, ".") { // else a section of variables
				t.Errorf("%s: map %s is not declared", object, name)
			}
		}
		for name, v := range spec.Variables {
			if !v.Constant() {
				continue
			}
			if set[name] = true; !constants[name] {
				t.Errorf("%s: constant %s is not declared", object, name)
			}
		}
	}
	for name := range tables {
		if !used[name] {
			t.Errorf("table %s is declared and in no object", name)
		}
	}
	for name := range constants {
		if !set[name] {
			t.Errorf("constant %s is declared and in no object", name)
		}
	}
}

// TestDocumentedTables: tables.md lists tables that exist.
func TestDocumentedTables(t *testing.T) {
	page, err := os.ReadFile("../../docs/develop/tables.md")
	if err != nil {
		t.Fatal(err)
	}
	tables, _ := declarations()
	quoted := regexp.MustCompile("`([a-z_0-9]+)`")
	found := 0
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 {
			continue // not of the list
		}
		for _, name := range quoted.FindAllStringSubmatch(cells[1], -1) {
			found++
			if !tables[name[1]] {
				t.Errorf("there is no table %s", name[1])
			}
		}
	}
	if found < 20 {
		t.Errorf("%d tables are listed", found)
	}
}
