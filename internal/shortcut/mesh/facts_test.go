// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"os"
	"path/filepath"
	"testing"
)

// TestContainerOf: the cgroup of a container is found whatever its runtime calls it; that of its monitor is another.
func TestContainerOf(t *testing.T) {
	const id = "0123456789abcdef"
	for name, want := range map[string]bool{
		"cri-containerd-" + id + ".scope": true, "crio-" + id + ".scope": true, "docker-" + id + ".scope": true, id: true,
		"crio-conmon-" + id + ".scope": false, "x" + id: false, id + "0": false, "cri-containerd-" + id[1:] + ".scope": false,
	} {
		pod := t.TempDir()
		if err := os.Mkdir(filepath.Join(pod, name), 0o755); err != nil {
			t.Fatal(err)
		}
		if got := containerOf(pod, id); (got == filepath.Join(pod, name)) != want {
			t.Errorf("%s: found %q, want it: %v", name, got, want)
		}
	}
	if got := containerOf(t.TempDir(), ""); got != "" {
		t.Errorf("a container without an id has the cgroup %q", got)
	}
}
