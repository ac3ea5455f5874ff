// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
)

// Paths of the objects that kube-proxy reads.
const (
	nodes          = "/api/v1/nodes"
	services       = "/api/v1/namespaces/default/services"
	endpointSlices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
)

// newHTTPClient makes the client for requests. It only writes objects, as JSON: client-go's would bring all of
// the API's kinds with it.
func (c *ControlPlane) newHTTPClient() (*http.Client, error) {
	return rest.HTTPClientFor(c.ClientConfig())
}

func (c *ControlPlane) request(ctx context.Context, method, path string, object runtime.Object) error {
	var body io.Reader
	if object != nil {
		text, err := json.Marshal(object)
		if err != nil {
			return err
		}
		body = bytes.NewReader(text)
	}
	request, err := http.NewRequestWithContext(ctx, method, c.url()+path, body)
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", runtime.ContentTypeJSON)
	response, err := c.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode >= 300 {
		err = fmt.Errorf("%s %s: %s: %.300s", method, path, response.Status, text)
	}
	return err
}

// collection is the path of an object in the default namespace; empty for one that does not concern kube-proxy.
func collection(object runtime.Object) (path, name string) {
	switch o := object.(type) {
	case *corev1.Node:
		return nodes, o.Name
	case *corev1.Service:
		return services, o.Name
	case *discoveryv1.EndpointSlice:
		return endpointSlices, o.Name
	}
	return "", ""
}

// Create creates Nodes, Services and EndpointSlices, many at once, and skips other objects.
func (c *ControlPlane) Create(ctx context.Context, objects ...runtime.Object) error {
	const atOnce = 16
	work, errs := make(chan runtime.Object), make([]error, atOnce)
	var workers sync.WaitGroup
	for i := range atOnce {
		workers.Go(func() {
			for object := range work {
				if err := c.create(ctx, object); err != nil && errs[i] == nil {
					errs[i] = err
				}
			}
		})
	}
	for _, object := range objects {
		work <- object
	}
	close(work)
	workers.Wait()
	return errors.Join(errs...)
}

func (c *ControlPlane) create(ctx context.Context, object runtime.Object) error {
	path, name := collection(object)
	if path == "" {
		return nil
	}
	// An agent accepts the families without the policy; the API server does not.
	if s, ok := object.(*corev1.Service); ok && len(s.Spec.ClusterIPs) > 1 && s.Spec.IPFamilyPolicy == nil {
		policy := corev1.IPFamilyPolicyRequireDualStack
		s = s.DeepCopy()
		s.Spec.IPFamilyPolicy, object = &policy, s
	}
	if err := c.request(ctx, http.MethodPost, path, object); err != nil {
		return err
	}
	if path != nodes {
		return nil
	}
	// A new Node has no status. Without a resource version an update replaces any version.
	return c.request(ctx, http.MethodPut, path+"/"+name+"/status", object)
}

// Update replaces a Service or an EndpointSlice.
func (c *ControlPlane) Update(ctx context.Context, object runtime.Object) error {
	path, name := collection(object)
	return c.request(ctx, http.MethodPut, path+"/"+name, object)
}

// Delete deletes Services and EndpointSlices.
func (c *ControlPlane) Delete(ctx context.Context, objects ...runtime.Object) error {
	var errs []error
	for _, object := range objects {
		path, name := collection(object)
		errs = append(errs, c.request(ctx, http.MethodDelete, path+"/"+name, nil))
	}
	return errors.Join(errs...)
}
