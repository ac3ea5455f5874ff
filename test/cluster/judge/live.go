// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"beeline.io/beeline/test/cluster"
	"beeline.io/beeline/test/lab"
)

// Subject is a Service that changes: a Scenario, and more. If it has a selector, its Endpoints are what the
// EndpointSlice controller should make of the pods.
type Subject struct {
	Scenario
	Rename  string // the Service's name; empty: the scenario's
	Absent  bool   // the Service does not exist
	Created int    // how often it was created again
	Sticky  bool   // it has session affinity
	Moved   bool   // its known port and that port's node port are nobody else's, see portUnknown
	Suffix  string // of the Service's port names
	// SliceSuffixes are those of the slices' port names; the slices have each port once per suffix.
	SliceSuffixes []string
	// Layout lists the endpoints in each slice, by number; nil for a slice means that it does not exist. A
	// nil Layout is all endpoints in one.
	Layout  [][]int
	Publish bool // publishNotReadyAddresses
}

// edited is a Subject after a change. An edit replaces lists, except for Endpoints.
func (s *Subject) edited(edit func(*Subject)) *Subject {
	c := *s
	c.Endpoints = slices.Clone(s.Endpoints)
	if edit != nil {
		edit(&c)
	}
	return &c
}

func (s *Subject) name() string { return either(s.Rename, s.Scenario.Name()) }

// object is the Service, nil if it is absent.
func (s *Subject) object() *corev1.Service {
	if s.Absent {
		return nil
	}
	object := s.Scenario.Service()
	object.Name = s.name()
	object.Spec.PublishNotReadyAddresses = s.Publish
	for i := range object.Spec.Ports {
		p := &object.Spec.Ports[i]
		p.Name += s.Suffix
		if s.Moved && p.Port == s.portKnown() {
			p.Port = portUnknown
			if p.NodePort > 0 {
				p.NodePort += nodePortUnknown
			}
		}
	}
	if s.Sticky {
		object = WithAffinity(object)
	}
	return object
}

// numberedSlice is an EndpointSlice and its place in the Layout.
type numberedSlice struct {
	*discoveryv1.EndpointSlice
	number int
}

// ownSlices are the slices without a controller, by name.
func (s *Subject) ownSlices(l *lab.Lab) map[string]numberedSlice {
	all := map[string]numberedSlice{}
	layout := s.Layout
	if s.Selector != "" {
		layout = [][]int{}
	} else if layout == nil {
		layout = [][]int{{}}
		for i := range s.Endpoints {
			layout[0] = append(layout[0], i)
		}
	}
	for _, family := range s.families() {
		for n, members := range layout {
			if members == nil {
				continue
			}
			object := s.slice(family, n)
			object.Name = fmt.Sprintf("%s-%s-%d", s.name(), family, n)
			object.Labels[discoveryv1.LabelServiceName] = s.name()
			for _, i := range members {
				object.Endpoints = append(object.Endpoints, s.endpoint(l, s.Endpoints[i], family, s.Endpoints[i].State))
			}
			s.renamePorts(object)
			all[object.Name] = numberedSlice{object, n}
		}
	}
	return all
}

func (s *Subject) renamePorts(object *discoveryv1.EndpointSlice) {
	if s.SliceSuffixes == nil {
		return
	}
	ports := object.Ports
	object.Ports = nil
	for _, suffix := range s.SliceSuffixes {
		for _, p := range ports {
			p.Name = new(*p.Name + suffix)
			object.Ports = append(object.Ports, p)
		}
	}
}

// write is one write to the API server.
type write struct {
	what  string
	slice int // the slice's place in the Layout; -1: it is of the Service
	do    func(context.Context) error
}

// writes lead from one Subject to another: the Service first, then the slices, remaining ones first. If the
// Service is another one or was created again, its slices are created before it.
func (p *Pair) writes(old, new *Subject) []write {
	var service, before, after []write
	was, is := old.object(), new.object()
	anew := was != nil && is != nil && (old.name() != new.name() || old.Created != new.Created)
	client := p.Cluster.Client.CoreV1().Services(cluster.Namespace)
	add := func(verb string, object *corev1.Service, do func(context.Context) error) {
		service = append(service, write{fmt.Sprintf("%s Service %s", verb, object.Name), -1, do})
	}
	if was != nil && (is == nil || anew) {
		add("delete", was, func(ctx context.Context) error { return client.Delete(ctx, was.Name, metav1.DeleteOptions{}) })
	}
	switch {
	case is != nil && (was == nil || anew):
		add("create", is, func(ctx context.Context) error { return p.createAgain(ctx, is) })
	case is != nil:
		spec, status := is.DeepCopy(), is.Status.LoadBalancer.Ingress
		spec.Status = was.Status
		if !equality.Semantic.DeepEqual(was, spec) {
			add("update", is, func(ctx context.Context) error {
				_, err := client.Update(ctx, is, metav1.UpdateOptions{})
				return err
			})
		}
		if !equality.Semantic.DeepEqual(was.Status, is.Status) && len(status) > 0 {
			add("update status of", is, func(ctx context.Context) error {
				_, err := p.Cluster.SetIngress(ctx, is, status...)
				return err
			})
		}
	}
	before, after = p.sliceWrites(old.ownSlices(p.Sides[0].Lab), new.ownSlices(p.Sides[0].Lab))
	if anew {
		return slices.Concat(before, service, after)
	}
	return slices.Concat(service, before, after)
}

// sliceWrites are updates and creations, and then deletions.
func (p *Pair) sliceWrites(was, is map[string]numberedSlice) (first, last []write) {
	client := p.Cluster.Client.DiscoveryV1().EndpointSlices(cluster.Namespace)
	for _, name := range slices.Sorted(maps.Keys(is)) {
		object := is[name]
		old, there := was[name]
		w := write{"create EndpointSlice " + name, object.number, func(ctx context.Context) error {
			_, err := client.Create(ctx, object.EndpointSlice, metav1.CreateOptions{})
			return err
		}}
		if there {
			w.what = "update EndpointSlice " + name
			w.do = func(ctx context.Context) error {
				_, err := client.Update(ctx, object.EndpointSlice, metav1.UpdateOptions{})
				return err
			}
		}
		if !there || !equality.Semantic.DeepEqual(old.EndpointSlice, object.EndpointSlice) {
			first = append(first, w)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(was)) {
		if _, stays := is[name]; !stays {
			last = append(last, write{"delete EndpointSlice " + name, was[name].number, func(ctx context.Context) error {
				return client.Delete(ctx, name, metav1.DeleteOptions{})
			}})
		}
	}
	return first, last
}

// createAgain creates a Service. Addresses of one that was just deleted may still be allocated.
func (p *Pair) createAgain(ctx context.Context, object *corev1.Service) error {
	return within(ctx, func() error {
		_, err := p.Cluster.CreateService(ctx, object)
		return err
	}, func(err error) bool {
		return apierrors.IsInvalid(err) && strings.Contains(err.Error(), "already allocated")
	})
}

// awaitController waits until the EndpointSlices of a Service with a selector agree with its Subject.
func (p *Pair) awaitController(ctx context.Context, s *Subject) error {
	want := map[string]string{}
	for _, family := range s.families() {
		for _, e := range s.Endpoints {
			object := s.endpoint(p.Sides[0].Lab, e, family, e.State)
			for _, port := range s.ports() {
				want[fmt.Sprintf("%s %s%s", object.Addresses[0], port.name, s.Suffix)] = conditionWord(object.Conditions)
			}
		}
	}
	return within(ctx, func() error {
		list, err := p.Cluster.Client.DiscoveryV1().EndpointSlices(cluster.Namespace).List(ctx, metav1.ListOptions{
			LabelSelector: discoveryv1.LabelServiceName + "=" + s.name(),
		})
		if err != nil {
			return err
		}
		got := map[string]string{}
		for _, slice := range list.Items {
			for _, e := range slice.Endpoints {
				for _, port := range slice.Ports {
					got[fmt.Sprintf("%s %s", e.Addresses[0], *port.Name)] = conditionWord(e.Conditions)
				}
			}
		}
		if !maps.Equal(got, want) {
			return fmt.Errorf("the EndpointSlices of Service %s say %v, want %v", s.name(), got, want)
		}
		return nil
	}, func(error) bool { return true })
}

// conditionWord is the name in states of an endpoint's conditions.
func conditionWord(c discoveryv1.EndpointConditions) string {
	is := func(condition *bool, otherwise bool) bool {
		if condition == nil {
			return otherwise
		}
		return *condition
	}
	switch {
	case is(c.Ready, true):
		return "ready"
	case !is(c.Terminating, false):
		return "not ready"
	case is(c.Serving, true):
		return "draining"
	}
	return "terminating"
}

// patienceForConditions bounds the wait for conditions; no result depends on it.
const patienceForConditions = 2 * time.Minute

// within retries while passes says that the error may be temporary.
func within(ctx context.Context, try func() error, passes func(error) bool) error {
	ctx, cancel := context.WithTimeout(ctx, patienceForConditions)
	defer cancel()
	for {
		err := try()
		if err == nil || !passes(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("still after %v: %w", patienceForConditions, err)
		case <-time.After(5 * time.Millisecond):
		}
	}
}
