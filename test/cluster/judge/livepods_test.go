// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"beeline.io/beeline/test/cluster"
)

// The real controller writes the EndpointSlices of these Services.
var podStories = []story{{
	what: "pods enter and leave a selector", rules: "R6, R9, R10, R12", subject: selecting(base(13), "in"), to: []string{"clusterIP"},
	prepare: labelPods(map[string]string{"a2": "in", "b1": "in", "a3": "out", "b3": "out"}),
	changes: []change{
		{what: "a pod gets the label", edit: func(s *Subject) { s.Endpoints = ready("a2", "b1", "b2") },
			by: labelPods(map[string]string{"b2": "in"}), udp: lives},
		{what: "a pod loses the label", edit: func(s *Subject) { s.Endpoints = ready("b1", "b2") },
			by: labelPods(map[string]string{"a2": ""})},
		{what: "the selector chooses others", edit: func(s *Subject) { *s = selecting(*s, "out"); s.Endpoints = ready("a3", "b3") }, udp: ends},
		{what: "the selector chooses those again", edit: func(s *Subject) { *s = selecting(*s, "in"); s.Endpoints = ready("b1", "b2") }, udp: ends},
		{what: "a pod is not ready", edit: states2("not ready", "ready"),
			by: func(ctx context.Context, c *cluster.Cluster) error { return c.SetPodReady(ctx, "b1", false) }},
		{what: "publishNotReadyAddresses is set", edit: func(s *Subject) { s.Publish = true; states2("ready", "ready")(s) }, udp: lives},
		{what: "publishNotReadyAddresses is unset", edit: func(s *Subject) { s.Publish = false; states2("not ready", "ready")(s) }},
		{what: "the other pod terminates", edit: states2("not ready", "draining"),
			by: func(ctx context.Context, c *cluster.Cluster) error { return c.TerminatePod(ctx, "b2") }, udp: lives},
		{what: "and no longer serves", edit: states2("not ready", "terminating"),
			by: func(ctx context.Context, c *cluster.Cluster) error { return c.SetPodReady(ctx, "b2", false) }, udp: ends},
		{what: "and is gone", edit: func(s *Subject) { s.Endpoints = s.Endpoints[:1] },
			by: func(ctx context.Context, c *cluster.Cluster) error { return c.RemovePod(ctx, "b2") }},
		{what: "a pod is ready again", edit: func(s *Subject) { s.Endpoints[0].State = "ready" },
			by: func(ctx context.Context, c *cluster.Cluster) error { return c.SetPodReady(ctx, "b1", true) }},
	},
}, {
	what: "ports and families of a Service with a selector", rules: "R5, R7", subject: selecting(base(14, "a3", "b3"), "out"), to: []string{"clusterIP"},
	changes: []change{
		{what: "new names of ports", edit: func(s *Subject) { s.Suffix = "-new" }, between: refusedBetween},
		{what: "one family", edit: func(s *Subject) { s.Families = "v4" }, between: refusedBetween},
		{what: "two families", edit: func(s *Subject) { s.Families = "v4v6" }, between: refusedBetween, udp: lives},
		{what: "service-proxy-name is set (R1)", edit: func(s *Subject) { s.Label = "proxy" }},
		{what: "service-proxy-name is removed (R1)", edit: func(s *Subject) { s.Label = "" }},
	},
}}

const labelLive = "live"

// selecting is a Service that selects pods by their label.
func selecting(s Subject, value string) Subject {
	s.Selector = labelLive + "=" + value
	return s
}

// labelPods gives pods their labels, and removes empty ones.
func labelPods(labels map[string]string) func(context.Context, *cluster.Cluster) error {
	return func(ctx context.Context, c *cluster.Cluster) error {
		for name, value := range labels {
			text := fmt.Sprintf("%q", value)
			if value == "" {
				text = "null"
			}
			patch := fmt.Sprintf(`{"metadata":{"labels":{%q:%s}}}`, labelLive, text)
			_, err := c.Client.CoreV1().Pods(cluster.Namespace).Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
			if err != nil {
				return fmt.Errorf("label of Pod %s: %w", name, err)
			}
		}
		return nil
	}
}
