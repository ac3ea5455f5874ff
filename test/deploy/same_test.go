// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
)

// The unit of examples/balancer and the table of docs/operate/security.md have the DaemonSet's capabilities.
func TestCapabilitiesAreTheSame(t *testing.T) {
	daemonSet := find[appsv1.DaemonSet](t, manifests(t, testImage, "192.0.2.1"), "DaemonSet", "beeline")
	var want []string
	for _, c := range daemonSet.Spec.Template.Spec.Containers[0].SecurityContext.Capabilities.Add {
		want = append(want, "CAP_"+string(c))
	}
	slices.Sort(want)
	for path, line := range map[string]string{
		"examples/balancer/beeline.service": `(?m)^CapabilityBoundingSet=(.*)$`,
		"docs/operate/security.md":          "(?m)^\\| `(CAP_[A-Z_]*)` \\|",
	} {
		var got []string
		for _, match := range regexp.MustCompile(line).FindAllStringSubmatch(string(read(t, sources(t, path))), -1) {
			got = append(got, strings.Fields(match[1])...)
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s has the capabilities %v, the DaemonSet %v", path, got, want)
		}
	}
}
