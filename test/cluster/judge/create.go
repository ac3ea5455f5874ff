// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"beeline.io/beeline/test/cluster"
)

// The older one of two Services has the smaller creationTimestamp, in whole seconds.
const older = time.Second

// create creates the Services and EndpointSlices of the cases, and then their companions, which are thus
// younger.
func (j *Judge) create(ctx context.Context, cases []*Case) error {
	lab := j.Pair.Sides[0].Lab
	err := inParallel(writers, scenariosOf(cases), func(s *Scenario) error {
		for _, side := range j.Pair.Sides {
			for _, addr := range s.onNode() {
				if err := addAddress(side.Lab.Host(judged), addr); err != nil {
					return err
				}
			}
		}
		if err := j.createService(ctx, s.Service(), s.EndpointSlices(lab)); err != nil {
			return err
		}
		if s.Selector != "" {
			return j.Pair.awaitController(ctx, &Subject{Scenario: *s})
		}
		return nil
	})
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(older):
	}
	err = inParallel(writers, scenariosOf(cases), func(s *Scenario) error {
		other, slices := s.Companion(lab)
		if other == nil {
			return nil
		}
		return j.createService(ctx, other, slices)
	})
	if err != nil {
		return err
	}
	return j.Pair.Await(ctx)
}

func (j *Judge) createService(ctx context.Context, object *corev1.Service, slices []*discoveryv1.EndpointSlice) error {
	if _, err := j.Pair.Cluster.CreateService(ctx, object); err != nil {
		return err
	}
	client := j.Pair.Cluster.Client.DiscoveryV1().EndpointSlices(cluster.Namespace)
	for _, slice := range slices {
		if _, err := client.Create(ctx, slice, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("creating EndpointSlice %s: %w", slice.Name, err)
		}
	}
	return nil
}
