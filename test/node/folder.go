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

	"beeline.io/beeline/internal/inspect"
)

// Folder is a folder of manifests that is changed while agents read it, and
// that can tell when they have taken a change in.
type Folder struct {
	Path string

	revision int
}

// Put writes objects into a file of the folder, in place of what it held.
func (f *Folder) Put(name string, objects ...runtime.Object) error {
	return f.change(func() error { return WriteManifest(f.Path, name+".yaml", objects...) })
}

// Write writes a file of the folder as it is, good or bad.
func (f *Folder) Write(name string, text []byte) error {
	return f.change(func() error { return WriteFile(f.Path, name+".yaml", text) })
}

// Remove removes a file of the folder, and its objects with it. One that does
// not exist is fine.
func (f *Folder) Remove(name string) error {
	return f.change(func() error {
		err := os.Remove(filepath.Join(f.Path, name+".yaml"))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
}

// change is followed by a new revision: a ServiceCIDR that nothing else uses.
// Whoever reads the new one has read the change, since a folder is one state;
// and the agent brings networks into the tables last of all.
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

// network is of the range for tests of network devices (RFC 2544), and so of
// nothing in the lab.
func (f *Folder) network() string {
	return fmt.Sprintf("198.18.%d.%d/32", f.revision>>8&255, f.revision&255)
}

// Await waits until the agents have brought the latest change into their
// tables.
func (f *Folder) Await(agents ...*Agent) error {
	var errs []error
	for _, a := range agents {
		errs = append(errs, a.WaitForTables(fmt.Sprintf("at revision %d of %s", f.revision, f.Path), func(t *inspect.Tables) bool {
			return slices.Contains(t.Networks, f.network())
		}))
	}
	return errors.Join(errs...)
}
