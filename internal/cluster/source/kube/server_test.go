// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// apiServer implements as much of the API as lists and watches need, over real connections, and can be made to
// fail.
type apiServer struct {
	t       testing.TB
	address string
	http    *http.Server

	// Capabilities; set before the first request.
	noWatchList, pages, jsonOnly, noServiceFields bool

	mu sync.Mutex
	// version is the resource version of the last change; the history starts after forgotten.
	version, forgotten int
	objects            map[string]map[string]runtime.Object // by resource, and namespace/name
	history            []change
	changed            chan struct{} // closed at the next change
	fault              func(request) http.HandlerFunc
	asked              []request
}

type change struct {
	version  int
	resource string
	old, now runtime.Object
}

// request is a request that the server received.
type request struct {
	resource string
	watch    bool
	options  metav1.ListOptions
	agent    string
}

func startServer(t testing.TB) *apiServer {
	s := &apiServer{t: t, address: "127.0.0.1:0", version: 1, objects: map[string]map[string]runtime.Object{}, changed: make(chan struct{})}
	s.start()
	t.Cleanup(s.stop)
	return s
}

func (s *apiServer) start() {
	s.t.Helper()
	listener, err := net.Listen("tcp", s.address)
	if err != nil {
		s.t.Fatal(err)
	}
	s.address = listener.Addr().String()
	s.http = &http.Server{Handler: http.HandlerFunc(s.serve)}
	go s.http.Serve(listener)
}

// stop breaks all connections.
func (s *apiServer) stop() { s.http.Close() }

// fail makes requests fail for which f returns a handler.
func (s *apiServer) fail(f func(request) http.HandlerFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = f
}

// requests returns the requests so far.
func (s *apiServer) requests() []request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.asked)
}

// forget drops the history, as etcd's compaction does.
func (s *apiServer) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.history, s.forgotten = nil, s.version
}

func resourceOf(o runtime.Object) string {
	for _, k := range kindsFor("", "") {
		if gvks, _, err := scheme.ObjectKinds(o); err == nil && gvks[0].Kind == string(k.name) {
			return k.resource.Resource
		}
	}
	panic(fmt.Sprintf("no kind for a %T", o))
}

func key(o runtime.Object) string {
	m, _ := meta.Accessor(o)
	return m.GetNamespace() + "/" + m.GetName()
}

// apply creates or replaces objects, each as a separate change.
func (s *apiServer) apply(objects ...runtime.Object) {
	for _, o := range objects {
		s.record(o, o.DeepCopyObject())
	}
}

func (s *apiServer) remove(objects ...runtime.Object) {
	for _, o := range objects {
		s.record(o, nil)
	}
}

func (s *apiServer) record(of, now runtime.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	resource := resourceOf(of)
	all := s.objects[resource]
	if all == nil {
		all = map[string]runtime.Object{}
		s.objects[resource] = all
	}
	s.version++
	old := all[key(of)]
	if now == nil {
		delete(all, key(of))
	} else {
		m, _ := meta.Accessor(now)
		m.SetResourceVersion(strconv.Itoa(s.version))
		all[key(of)] = now
	}
	s.history = append(s.history, change{s.version, resource, old, now})
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *apiServer) serve(w http.ResponseWriter, r *http.Request) {
	k := kindOf(r.URL.Path)
	if k == nil {
		http.NotFound(w, r)
		return
	}
	asked := request{resource: k.resource.Resource, agent: r.UserAgent()}
	if err := parameterCodec.DecodeParameters(r.URL.Query(), schema.GroupVersion{Version: "v1"}, &asked.options); err != nil {
		s.t.Errorf("%s: %v", r.URL, err)
	}
	asked.watch = asked.options.Watch
	s.mu.Lock()
	s.asked = append(s.asked, asked)
	fault := s.fault
	s.mu.Unlock()
	if fault != nil {
		if f := fault(asked); f != nil {
			f(w, r)
			return
		}
	}
	a := &answer{apiServer: s, w: w, r: r, kind: k, options: asked.options}
	a.choose()
	var err error
	if a.labels, err = labels.Parse(asked.options.LabelSelector); err != nil {
		s.t.Errorf("%s: %v", r.URL, err)
	}
	if a.fields, err = fields.ParseSelector(asked.options.FieldSelector); err != nil {
		s.t.Errorf("%s: %v", r.URL, err)
	}
	if s.noServiceFields && a.kind.resource.Resource == "services" && !a.fields.Empty() {
		a.status(apierrors.NewBadRequest(`field label not supported: spec.clusterIP`))
		return
	}
	if asked.watch {
		a.watch()
	} else {
		a.list()
	}
}

func kindOf(path string) *kind {
	for _, k := range kindsFor("", "") {
		prefix := "/apis/" + k.resource.Group + "/"
		if k.resource.Group == "" {
			prefix = "/api/"
		}
		if path == prefix+k.resource.Version+"/"+k.resource.Resource {
			return &k
		}
	}
	return nil
}
