// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"beeline.io/beeline/internal/cluster/service"
)

// Events writes Events. Its requests do not count for the state of the connection to the server: one that is
// refused or fails says nothing about the objects.
type Events struct{ client rest.Interface }

// Events returns the client for Events.
func (s *Source) Events() *Events { return s.events }

// UID returns the UID of a Service, Pod or Node. Events of Nodes have the name as UID, as the kubelet writes
// them and kubectl looks for them.
func (e *Events) UID(ctx context.Context, object service.Ref) (types.UID, error) {
	if object.Kind == service.KindNode {
		return types.UID(object.Name), nil
	}
	text, err := e.client.Get().AbsPath("/api/v1/namespaces", object.Namespace, strings.ToLower(string(object.Kind))+"s", object.Name).
		SetHeader("Accept", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json").Do(ctx).Raw()
	if err != nil {
		return "", err
	}
	var found metav1.PartialObjectMetadata
	if err := json.Unmarshal(text, &found); err != nil {
		return "", fmt.Errorf("metadata of %s: %w", object, err)
	}
	return found.UID, nil
}

// CreateEvent creates an Event. Its errors are those of the API.
func (e *Events) CreateEvent(ctx context.Context, event *eventsv1.Event) error {
	body, err := json.Marshal(event)
	if err != nil {
		return err
	}
	return e.client.Post().AbsPath("/apis/events.k8s.io/v1/namespaces", event.Namespace, "events").Body(body).Do(ctx).Error()
}
