// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"beeline.io/beeline/test/controlplane"
	"beeline.io/beeline/test/node"
)

// source is where the agent reads its objects.
type source interface {
	put(name string, objects ...runtime.Object) error
	remove(name string) error
	configure(a *node.Agent)
	// leave makes the source unavailable until back is called.
	leave() error
	back() error
	isAway() bool
}

func (w *world) newSource() source {
	if *apiFlag {
		return w.newServer()
	}
	return &folder{Folder: node.Folder{Path: filepath.Join(w.t.TempDir(), "manifests")}}
}

// folder is a folder of manifests; it is away under another name.
type folder struct {
	mu sync.Mutex
	node.Folder
	gone bool
}

func (f *folder) put(name string, objects ...runtime.Object) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.gone {
		return nil
	}
	if err := os.MkdirAll(f.Path, 0o755); err != nil {
		return err
	}
	return f.Put(name, objects...)
}

func (f *folder) remove(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.Remove(name)
}

func (f *folder) configure(a *node.Agent) { a.Manifests = f.Path }

func (f *folder) leave() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gone = true
	return os.Rename(f.Path, f.Path+"-away")
}

func (f *folder) back() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gone = false
	return os.Rename(f.Path+"-away", f.Path)
}

func (f *folder) isAway() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.gone
}

// server is a real API server; it is away while its process is killed.
type server struct {
	*controlplane.ControlPlane
	ctx  context.Context
	made sync.Map // names
	gone atomic.Bool
}

func (w *world) newServer() *server {
	w.t.Helper()
	path, err := controlplane.Program()
	w.must(err)
	plane, err := controlplane.Start(context.Background(), w.Lab, path)
	w.must(err)
	w.t.Cleanup(func() {
		if err := plane.Stop(); err != nil {
			w.t.Errorf("stopping the control plane: %v", err)
		}
	})
	return &server{ControlPlane: plane, ctx: context.Background()}
}

// put creates objects, or replaces their EndpointSlices: nothing else of them changes.
func (s *server) put(name string, objects ...runtime.Object) error {
	if s.gone.Load() {
		return nil
	}
	if _, made := s.made.Load(name); !made {
		s.made.Store(name, objects)
		return s.Create(s.ctx, objects...)
	}
	for _, o := range objects {
		if slice, ok := o.(*discoveryv1.EndpointSlice); ok {
			if err := s.Update(s.ctx, slice); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *server) remove(name string) error {
	objects, made := s.made.LoadAndDelete(name)
	if !made {
		return nil
	}
	return s.Delete(s.ctx, objects.([]runtime.Object)...)
}

func (s *server) configure(a *node.Agent) { a.Kubeconfig = s.Kubeconfig(controlplane.UserAdmin) }

func (s *server) leave() error {
	s.gone.Store(true)
	return s.KillAPIServer()
}

func (s *server) back() error {
	if err := s.StartAPIServer(s.ctx); err != nil {
		return err
	}
	s.gone.Store(false)
	return nil
}

func (s *server) isAway() bool { return s.gone.Load() }
