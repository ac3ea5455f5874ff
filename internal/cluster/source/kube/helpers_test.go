// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/cluster/source"
)

// deadline bounds the waits of tests. No result depends on it.
const deadline = 3 * time.Minute

// quickly has short delays for tests.
var quickly = timing{first: 10 * time.Millisecond, max: 100 * time.Millisecond, maxRefused: 200 * time.Millisecond, answer: deadline, starting: 50 * time.Millisecond}

func svc(name, clusterIP string, labels ...string) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{}},
		Spec: corev1.ServiceSpec{
			ClusterIP: clusterIP, ClusterIPs: []string{clusterIP}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}},
		},
	}
	for i := 0; i < len(labels); i += 2 {
		s.Labels[labels[i]] = labels[i+1]
	}
	return s
}

func slice(name string, addresses ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: name + "-1", Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new(""), Port: new(int32(8080)), Protocol: new(corev1.ProtocolTCP)}},
	}
	for _, a := range addresses {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}, NodeName: new("node-a")})
	}
	return s
}

func node(name, address string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}}},
	}
}

func pod(name, node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: "uid"},
		Spec:       corev1.PodSpec{NodeName: node},
	}
}

// receiver applies the events of a source.
type receiver struct {
	t       *testing.T
	source  *Source
	events  chan source.Event
	log     *safeBuffer
	objects map[service.Ref]service.Object
	last    source.Event
	count   int
}

// safeBuffer is the output of a log.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func kubeconfig(t testing.TB, server string) string {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "%s"}}]
users: [{name: u, user: {token: secret}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`, server)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// newSource creates a source of a server without running it.
func newSource(t testing.TB, s *apiServer, change func(*Options)) (*Source, *safeBuffer) {
	t.Helper()
	log := &safeBuffer{}
	o := Options{Kubeconfig: kubeconfig(t, "http://"+s.address), Version: "test", NodeName: "node-a", Log: slog.New(slog.NewTextHandler(log, nil))}
	if change != nil {
		change(&o)
	}
	src, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	src.timing = quickly
	return src, log
}

// receive runs a source of the server. It receives events only when the test asks for them.
func receive(t *testing.T, s *apiServer, change func(*Options)) *receiver {
	t.Helper()
	src, log := newSource(t, s, change)
	return run(t, src, log)
}

// receiveWith is receive with a source that is changed before it runs.
func receiveWith(t *testing.T, s *apiServer, change func(*Source)) *receiver {
	t.Helper()
	src, log := newSource(t, s, nil)
	change(src)
	return run(t, src, log)
}

func run(t *testing.T, src *Source, log *safeBuffer) *receiver {
	r := &receiver{t: t, source: src, events: make(chan source.Event), log: log, objects: map[service.Ref]service.Object{}}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- src.Run(ctx, r.events) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return r
}

// next receives one event, and checks invariants of all events.
func (r *receiver) next() source.Event {
	r.t.Helper()
	select {
	case r.last = <-r.events:
	case <-time.After(deadline):
		r.t.Fatalf("no event within %v; the source logged:\n%s", deadline, r.log)
	}
	r.count++
	if !r.last.Synced && len(r.last.Changes) > 0 {
		r.t.Fatalf("R4: changes before all kinds are complete: %v", r.last.Changes)
	}
	if !slices.IsSortedFunc(r.last.Changes, func(a, b service.Change) int { return a.Ref.Compare(b.Ref) }) {
		r.t.Fatalf("not sorted: %v", r.last.Changes)
	}
	for _, c := range r.last.Changes {
		if c.Object == nil && r.objects[c.Ref] == nil {
			r.t.Fatalf("%s is removed, and did not exist", c.Ref)
		}
		if r.objects[c.Ref] = c.Object; c.Object == nil {
			delete(r.objects, c.Ref)
		}
	}
	return r.last
}

// want receives one event with these changes: +Kind/name for an added or changed object, -Kind/name for a
// removed one.
func (r *receiver) want(changes ...string) {
	r.t.Helper()
	ev := r.next()
	var got []string
	for _, c := range ev.Changes {
		sign := "+"
		if c.Object == nil {
			sign = "-"
		}
		got = append(got, sign+string(c.Ref.Kind)+"/"+c.Ref.Name)
	}
	if !slices.Equal(got, changes) {
		r.t.Fatalf("got %v, want %v; problems:\n%v", got, changes, ev.Problems)
	}
}

// wantNothing checks that no event is waiting.
func (r *receiver) wantNothing(when string) {
	r.t.Helper()
	select {
	case ev := <-r.events:
		r.t.Fatalf("an event %s: %+v", when, ev)
	default:
	}
}

// untilWhole receives events until all of world exists, without a problem.
func (r *receiver) untilWhole() {
	r.t.Helper()
	r.until("all of it", func() bool { return len(r.objects) == len(allOfWorld) && len(r.last.Problems) == 0 })
}

// until receives events until ok holds.
func (r *receiver) until(what string, ok func() bool) {
	r.t.Helper()
	end := time.Now().Add(deadline)
	for !ok() {
		if time.Now().After(end) {
			r.t.Fatalf("waited %v in vain for this: %s", deadline, what)
		}
		r.next()
	}
}

// wait waits without receiving events.
func (r *receiver) wait(what string, ok func() bool) {
	r.t.Helper()
	for end := time.Now().Add(deadline); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			r.t.Fatalf("waited %v in vain for this: %s", deadline, what)
		}
	}
}

// problem waits for a problem with all these words.
func (r *receiver) problem(words ...string) {
	r.t.Helper()
	r.until("a problem with "+strings.Join(words, ", "), func() bool {
		return slices.ContainsFunc(r.last.Problems, func(p source.Problem) bool {
			return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(p.String(), w) })
		})
	})
}

func (r *receiver) has(kind service.Kind, name string) bool {
	for ref := range r.objects {
		if ref.Kind == kind && ref.Name == name {
			return true
		}
	}
	return false
}
