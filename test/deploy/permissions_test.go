// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"

	"beeline.io/beeline/internal/cluster/source"
	"beeline.io/beeline/internal/cluster/source/kube"
)

// permission is one verb on one resource.
type permission struct{ group, resource, verb string }

func (p permission) String() string { return p.verb + " " + p.resource }

// permissions: with the role of the manifests the source has no problem, and without any one permission to list or
// watch the source reports one that names the resource. The others are for Events.
func (s *server) permissions(t *testing.T) {
	role := find[rbacv1.ClusterRole](t, s.manifests, "ClusterRole", "beeline")
	var all []permission
	for _, rule := range role.Rules {
		for _, resource := range rule.Resources {
			for _, verb := range rule.Verbs {
				if verb == "list" || verb == "watch" {
					all = append(all, permission{rule.APIGroups[0], resource, verb})
				}
			}
		}
	}
	if err := s.follow(t, s.token(t, "beeline"), func(ev source.Event) bool { return ev.Synced && len(ev.Problems) == 0 }); err != nil {
		t.Errorf("with the permissions of the manifests: %v", err)
	}
	s.events(t)
	var cases sync.WaitGroup
	for i, missing := range all {
		token := s.accountWithout(t, fmt.Sprintf("without-%d", i), all, missing)
		cases.Go(func() {
			if err := s.follow(t, token, func(ev source.Event) bool { return names(ev.Problems, missing.resource) }); err != nil {
				t.Errorf("without the permission to %v nothing is missing: %v", missing, err)
			}
		})
	}
	cases.Wait()
}

// events: the account may create an Event in any namespace and read what it is about, and may not change it.
func (s *server) events(t *testing.T) {
	config := s.ClientConfig()
	config.BearerToken = s.token(t, "beeline")
	client, err := dynamic.NewForConfig(config)
	must(t, err)
	for namespace, about := range map[string]string{"default": "Service", "kube-system": "Pod"} {
		event := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": map[string]any{"name": "test", "namespace": namespace},
			"eventTime": "2026-01-01T00:00:00.000000Z", "type": "Warning", "reason": "Test", "action": "Test", "note": "a test",
			"reportingController": "beeline", "reportingInstance": "beeline-node-a",
			"regarding": map[string]any{"kind": about, "name": "kubernetes", "namespace": namespace, "apiVersion": "v1"},
		}}
		_, err = client.Resource(eventsv1.SchemeGroupVersion.WithResource("events")).Namespace(namespace).Create(t.Context(), event, metav1.CreateOptions{})
		must(t, err)
		resource := client.Resource(corev1.SchemeGroupVersion.WithResource(strings.ToLower(about) + "s")).Namespace(namespace)
		if _, err := resource.Get(t.Context(), "kubernetes", metav1.GetOptions{}); apierrors.IsForbidden(err) {
			t.Errorf("reading a %s: %v", about, err)
		}
		if err := resource.Delete(t.Context(), "kubernetes", metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("deleting a %s: %v", about, err)
		}
	}
}

func names(problems source.Problems, resource string) bool {
	for _, p := range problems {
		if strings.Contains(p.Reason, resource) {
			return true
		}
	}
	return false
}

// accountWithout creates a service account with all permissions but one, and returns a token of it.
func (s *server) accountWithout(t *testing.T, name string, all []permission, missing permission) (token string) {
	t.Helper()
	role := rbacv1.ClusterRole{}
	for _, p := range all {
		if p != missing {
			role.Rules = append(role.Rules, rbacv1.PolicyRule{APIGroups: []string{p.group}, Resources: []string{p.resource}, Verbs: []string{p.verb}})
		}
	}
	const version = "rbac.authorization.k8s.io/v1"
	binding := rbacv1.ClusterRoleBinding{
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "kube-system", Name: name}},
	}
	for _, o := range []*unstructured.Unstructured{
		newObject("v1", "ServiceAccount", name),
		filled(t, newObject(version, "ClusterRole", name), &role),
		filled(t, newObject(version, "ClusterRoleBinding", name), &binding),
	} {
		_, err := s.apply(t.Context(), o, false)
		must(t, err)
	}
	return s.token(t, name)
}

// filled adds the fields of a typed object to an unstructured one.
func filled(t *testing.T, o *unstructured.Unstructured, from runtime.Object) *unstructured.Unstructured {
	t.Helper()
	text, err := json.Marshal(from)
	must(t, err)
	fields := map[string]any{}
	must(t, json.Unmarshal(text, &fields))
	for _, name := range []string{"rules", "roleRef", "subjects"} {
		if fields[name] != nil {
			o.Object[name] = fields[name]
		}
	}
	return o
}

var errPatience = errors.New("no such event of the source")

// follow runs a source with a token until one of its events is as wanted.
func (s *server) follow(t *testing.T, token string, wanted func(source.Event) bool) error {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), patience, errPatience)
	defer cancel()
	user := fmt.Sprintf("user-%x", token[len(token)-8:])
	if err := s.WriteKubeconfig(user, token); err != nil {
		return err
	}
	objects, err := kube.New(kube.Options{
		Kubeconfig: s.Kubeconfig(user), NodeName: "node-a", Log: slog.New(slog.DiscardHandler),
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			return s.Lab.Host("fabric").Dial(ctx, network, address)
		},
	})
	if err != nil {
		return err
	}
	events := make(chan source.Event)
	go objects.Run(ctx, events)
	var last source.Event
	for {
		select {
		case last = <-events:
			if wanted(last) {
				return nil
			}
		case <-ctx.Done():
			return fmt.Errorf("%w; the last one: synced %t, %v", context.Cause(ctx), last.Synced, last.Problems)
		}
	}
}
