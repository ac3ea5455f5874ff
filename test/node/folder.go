// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"beeline.io/beeline/internal/api"
)

// Folder is a folder of manifests that changes while agents read it, and that can wait until they have applied
// a change.
type Folder struct {
	Path string

	revision int
}

// Put replaces the objects in a file of the folder.
func (f *Folder) Put(name string, objects ...runtime.Object) error {
	return f.change(func() error { return WriteManifest(f.Path, name+".yaml", objects...) })
}

// Write replaces a file of the folder with a text, valid or not.
func (f *Folder) Write(name string, text []byte) error {
	return f.change(func() error { return WriteFile(f.Path, name+".yaml", text) })
}

// Remove removes a file of the folder with its objects, if it exists.
func (f *Folder) Remove(name string) error {
	return f.change(func() error {
		err := os.Remove(filepath.Join(f.Path, name+".yaml"))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
}

// change increments the revision after a change: a ServiceCIDR that nothing else uses. An agent that has read
// the new one has read the change, because a folder is one state; and it writes networks to the tables last.
func (f *Folder) change(do func() error) error {
	if err := do(); err != nil {
		return err
	}
	f.revision++
	return WriteManifest(f.Path, "revision.yaml", &networkingv1.ServiceCIDR{
		TypeMeta:   metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "ServiceCIDR"},
		ObjectMeta: metav1.ObjectMeta{Name: "revision"},
		Spec:       networkingv1.ServiceCIDRSpec{CIDRs: []string{f.network()}},
	})
}

// network is in the range for tests of network devices (RFC 2544), which the lab does not use.
func (f *Folder) network() string {
	return fmt.Sprintf("198.18.%d.%d/32", f.revision>>8&255, f.revision&255)
}

// Await waits until the agents have the latest change in their tables.
func (f *Folder) Await(agents ...*Agent) error {
	var errs []error
	for _, a := range agents {
		errs = append(errs, a.WaitForTables(fmt.Sprintf("at revision %d of %s", f.revision, f.Path), func(t *api.Tables) bool {
			return slices.Contains(t.ServiceCIDRs, f.network())
		}))
	}
	return errors.Join(errs...)
}
